//! Ports that stay ours: across a server's restart, and beside every other test bed on the machine.

use std::collections::hash_map::RandomState;
use std::fs::{self, File};
use std::hash::BuildHasher;
use std::net::{Ipv4Addr, TcpListener};
use std::path::PathBuf;

use crate::error::{Doing, Error, Result};

/// Below the range from which Linux takes ports for outgoing connections (32768 and up), which could steal the port of a
/// server while it restarts.
const RANGE: std::ops::Range<u16> = 17_000..32_000;

/// A TCP port on 127.0.0.1 that no other test bed takes while this value lives.
#[derive(Debug)]
pub struct Port {
    /// Its number.
    pub number: u16,
    _lock: File,
}

impl Port {
    /// A port on which nobody listens now.
    pub fn reserve() -> Result<Self> {
        // Root's locks would be in nobody's way: each user has a folder.
        let folder = PathBuf::from(format!("/tmp/.htb-ports-{}", rustix::process::geteuid().as_raw()));
        fs::create_dir_all(&folder).doing("making the folder", &folder)?;
        // RandomState is std's source of randomness: two processes begin at different places.
        let count = RANGE.end - RANGE.start;
        let start = u16::try_from(RandomState::new().hash_one(0) % u64::from(count)).unwrap_or(0);
        for step in 0..count {
            let number = RANGE.start + (start + step) % count;
            let path = folder.join(number.to_string());
            let lock = File::options().create(true).append(true).open(&path).doing("opening", &path)?;
            if lock.try_lock().is_ok() && TcpListener::bind((Ipv4Addr::LOCALHOST, number)).is_ok() {
                return Ok(Self { number, _lock: lock });
            }
        }
        Err(Error::Machine {
            problem: format!("no free port in {RANGE:?}"),
            remedy: "stop what listens there".to_owned(),
        })
    }
}
