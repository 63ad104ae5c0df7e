//! The same HTCJob as Pods: by the controllers of a real kube-controller-manager. There is no node: what a kubelet would say of a Pod
//! is written into its status.

mod attacks;
mod document;
mod kills;
pub mod kubelet;
mod lifecycle;
mod logs;
mod queued;
mod rights;
pub mod stage;
mod trouble;

pub use kills::POINTS;
