//! Control planes that have served a test and are as they were before it: the next test gets them.

use std::ops::Deref;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;

use testbed::{Assets, Controllers, Kube, KubeOptions};

use super::Bed;

static FREE: Mutex<Vec<Kube>> = Mutex::new(Vec::new());

/// A control plane with the CRD and the operator's namespace, for one test at a time.
pub struct ControlPlane(Option<Kube>);

fn free() -> MutexGuard<'static, Vec<Kube>> {
    FREE.lock().unwrap_or_else(PoisonError::into_inner)
}

impl ControlPlane {
    /// One that another test has left, or a new one.
    pub fn get(assets: &Assets) -> Self {
        let left = free().pop();
        let kube = left.unwrap_or_else(|| {
            let kube = Self::start(assets, &KubeOptions { garbage: 400, ..KubeOptions::default() });
            kube.remember().unwrap();
            kube
        });
        Self(Some(kube))
    }

    /// One that is different, and for this test alone.
    pub fn different(assets: &Assets, options: &KubeOptions) -> Self {
        Self(Some(Self::start(assets, options)))
    }

    fn start(assets: &Assets, options: &KubeOptions) -> Kube {
        let kube = Kube::start_with(assets, options).unwrap();
        kube.apply_crd(&htc_operator::api::crd_yaml().unwrap(), "htcjobs.htc.cern.ch").unwrap();
        kube.apply_crd(&htc_operator::api::pool_crd_yaml().unwrap(), "htcpools.htc.cern.ch").unwrap();
        kube.apply_crd(&htc_operator::api::queue_crd_yaml().unwrap(), "htcqueues.htc.cern.ch").unwrap();
        kube.kubectl_ok(&["create", "namespace", "htc-operator"]).unwrap();
        kube
    }
}

impl Deref for ControlPlane {
    type Target = Kube;

    fn deref(&self) -> &Kube {
        self.0.as_ref().expect("it is given back at the end only")
    }
}

impl Drop for ControlPlane {
    fn drop(&mut self) {
        let kube = self.0.take().filter(|kube| !thread::panicking() && kube.restore().unwrap_or(false));
        free().extend(kube);
    }
}

impl Bed {
    /// Starts these controllers of kube-controller-manager, such as `namespace-controller`. They change what other tests find: the
    /// API server must be of this test alone.
    pub fn controllers(&self, which: &[&str]) -> Controllers {
        Controllers::start(&self.assets, &self.kube, which).unwrap()
    }
}
