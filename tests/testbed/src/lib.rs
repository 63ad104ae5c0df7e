//! Starts real servers for tests and the demo: a Kubernetes control plane and HTCondor pools.
//!
//! `testbed setup` fills a cache outside the checkout, once. After that tests use this library, which blocks, needs no
//! async runtime and never leaves a process behind, however a test ends:
//!
//! ```no_run
//! # fn main() -> testbed::Result<()> {
//! use testbed::{Assets, Kube, Pool, PoolOptions, Version};
//! let assets = Assets::locate()?;
//! let kube = Kube::start(&assets)?;
//! let pool = Pool::start(&assets, Version::Trixie, &PoolOptions::default())?;
//! let operator = pool.client("operator")?;
//! println!("{}{}", kube.kubectl_ok(&["get", "namespaces"])?, operator.ok("condor_q", &[])?);
//! # Ok(()) }
//! ```
//!
//! The rooms: [`cache`] keeps artefacts; `packages`, `recipes`, `kubernetes` and `kueue_recipe` make them; [`Assets`] says where they
//! are; [`Owned`] runs a process bound to this one; [`Kube`], [`Kueue`], [`Pool`], [`Registry`], [`Kdc`], [`Nginx`] and [`XRootD`] are the
//! servers; [`wait_for`] is how tests wait.

mod account;
mod assets;
pub mod cache;
mod certs;
mod client;
mod cluster;
mod controllers;
mod demo;
pub mod environment;
mod error;
mod file_servers;
mod file_servers_recipe;
mod go;
mod htcondor_image;
mod kdc;
mod kerberos;
mod kube;
mod kubernetes;
mod kueue;
mod kueue_recipe;
mod measured;
mod node_recipe;
mod oci;
mod operator_image;
mod owned;
mod packages;
mod pool;
mod ports;
pub mod processes;
mod progress;
mod proxy;
mod recipes;
mod registry;
mod scratch;
mod storage;
pub mod tool;
mod upstream;
mod wait;

pub use account::Account;
pub use assets::Assets;
pub use certs::FRONT_PROXY;
pub use client::Client;
pub use cluster::{Part, Purpose, cluster, cluster_inside};
pub use controllers::Controllers;
pub use demo::demo;
pub use error::{Error, Result};
pub use file_servers::{Nginx, XRootD};
pub use kdc::{Kdc, REALM};
pub use kube::{EtcdCopy, Kube, KubeOptions, OPERATOR, SERVICE_ACCOUNTS};
pub use kueue::Kueue;
pub use measured::measured;
pub use operator_image::IMAGE_ACCOUNT;
pub use owned::{Owned, Spec};
pub use pool::{Pool, PoolOptions, Version};
pub use ports::Port;
pub use proxy::{Fault, Proxy, Rule, Seen};
pub use registry::Registry;
pub use scratch::Scratch;
pub use storage::Stored;
pub use upstream::Credentials;
pub use wait::{Look, ran_out, wait_for};

/// The image of most files in examples/. Sites have it on CVMFS; a test bed's operator gets [`Assets::image`] for it.
pub const EXAMPLES_IMAGE: &str = "/cvmfs/unpacked.cern.ch/registry.hub.docker.com/library/centos:centos7";

/// Makes what a cluster with a node needs and is not in the cache yet. With `refresh` what is Debian's is made again.
pub fn setup_cluster(refresh: bool) -> Result<()> {
    assets::ClusterAssets::setup(refresh).map(drop)
}

/// Makes Kueue's controller, if it is not in the cache yet.
pub fn setup_kueue() -> Result<()> {
    assets::setup_kueue().map(drop)
}
