//! Control planes that have served a test and are as they were before it: the next test gets them.

use std::ops::Deref;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;

use serde_json::json;
use testbed::{Assets, Controllers, Kube, KubeOptions, wait_for};

use super::{Bed, PATIENCE, rights, turns};
use crate::api::Reader;

/// Those that no test has at the moment.
static FREE: Mutex<Vec<Plane>> = Mutex::new(Vec::new());

struct Plane {
    // Fields drop in this order.
    controllers: Option<Controllers>,
    kube: Kube,
    /// Which controllers of kube-controller-manager it runs with.
    which: &'static [&'static str],
}

/// A control plane with the CRDs, the operator's namespace and its rights, for one test at a time.
pub struct ControlPlane(Option<Plane>);

fn free() -> MutexGuard<'static, Vec<Plane>> {
    FREE.lock().unwrap_or_else(PoisonError::into_inner)
}

impl ControlPlane {
    /// One that another test has left, or a new one.
    pub fn get(assets: &Assets) -> Self {
        Self::with_controllers(assets, &[])
    }

    /// The same with these controllers of kube-controller-manager, such as `job-controller` and `serviceaccount-controller`, which a test
    /// neither stops nor changes.
    pub fn with_controllers(assets: &Assets, which: &'static [&'static str]) -> Self {
        let left = {
            let mut free = free();
            let place = free.iter().position(|plane| plane.which == which);
            place.map(|place| free.swap_remove(place))
        };
        Self(Some(left.unwrap_or_else(|| {
            let kube = Self::start(assets, &KubeOptions::default());
            let start = || {
                let controllers = Controllers::start(assets, &kube, which).unwrap();
                let reader = Reader::new(kube.kubeconfig());
                wait_for("ServiceAccounts in all namespaces", PATIENCE, || accounts(&reader)).unwrap();
                controllers
            };
            let controllers = (!which.is_empty()).then(start);
            kube.remember().unwrap();
            Plane { controllers, kube, which }
        })))
    }

    /// One that is different, and for this test alone.
    pub fn different(assets: &Assets, options: &KubeOptions) -> Self {
        Self(Some(Plane { controllers: None, kube: Self::start(assets, options), which: &[] }))
    }

    fn start(assets: &Assets, options: &KubeOptions) -> Kube {
        let kube = Kube::start_with(assets, &KubeOptions { processors: Some(1), ..options.clone() }).unwrap();
        kube.apply_crd(&htc_api::crd_yaml().unwrap(), "htcjobs.htc.cern.ch").unwrap();
        kube.apply_crd(&htc_api::pool_crd_yaml().unwrap(), "htcpools.htc.cern.ch").unwrap();
        kube.apply_crd(&htc_api::queue_crd_yaml().unwrap(), "htcqueues.htc.cern.ch").unwrap();
        let namespace = json!({ "apiVersion": "v1", "kind": "Namespace", "metadata": { "name": "htc-operator" } });
        let reader = Reader::new(kube.kubeconfig());
        reader.apply(&namespace).unwrap();
        rights::grant(&reader, &rights::of_base());
        kube
    }
}

impl Deref for ControlPlane {
    type Target = Kube;

    fn deref(&self) -> &Kube {
        &self.0.as_ref().expect("it is given back at the end only").kube
    }
}

impl Drop for ControlPlane {
    fn drop(&mut self) {
        let works = |plane: &Plane| {
            plane.controllers.as_ref().is_none_or(Controllers::run) && plane.kube.restore().unwrap_or(false)
        };
        // One that nobody asks anything takes a hundredth of a core: those are ended that no test to come may want.
        let is_wanted = |plane: &Plane| {
            let left = free().iter().filter(|other| other.which == plane.which).count();
            left < turns::with_servers_to_come().max(1)
        };
        let plane = self.0.take().filter(|plane| !thread::panicking() && is_wanted(plane) && works(plane));
        free().extend(plane);
    }
}

/// What serviceaccount-controller makes as it begins: it is there before what is stored is remembered.
fn accounts(reader: &Reader) -> Result<(), String> {
    let namespaces = reader.objects("/api/v1/namespaces").len();
    let accounts = reader.objects("/api/v1/serviceaccounts");
    let accounts = accounts.iter().filter(|account| account["metadata"]["name"] == "default").count();
    if accounts == namespaces { Ok(()) } else { Err(format!("{accounts} of {namespaces}")) }
}

impl Bed {
    /// Starts these controllers of kube-controller-manager, such as `namespace-controller`. They change what other tests find: the
    /// API server must be of this test alone.
    pub fn controllers(&self, which: &[&str]) -> Controllers {
        Controllers::start(&self.assets, &self.kube, which).unwrap()
    }
}
