//! The cache: made once, repaired when broken, by one process at a time.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test")]

use std::fs;
use std::path::Path;
use std::sync::atomic::{AtomicU32, Ordering};

use testbed::cache::{Cache, Recipe};
use testbed::{Error, Result, Scratch};

/// An artefact of two files, one of which names the artefact's own place.
#[derive(Default)]
struct Fake {
    made: AtomicU32,
    fails: bool,
}

impl Fake {
    fn made(&self) -> u32 {
        self.made.load(Ordering::SeqCst)
    }
}

impl Recipe for Fake {
    fn key(&self) -> String {
        "fake-1".to_owned()
    }

    fn waits_for(&self) -> String {
        "a fake artefact (no time)".to_owned()
    }

    fn make(&self, staging: &Path, home: &Path) -> Result<()> {
        self.made.fetch_add(1, Ordering::SeqCst);
        fs::create_dir(staging.join("bin")).unwrap();
        fs::write(staging.join("bin/a"), home.to_str().unwrap()).unwrap();
        if self.fails {
            return Err(Error::Machine { problem: "broken".to_owned(), remedy: "none".to_owned() });
        }
        fs::write(staging.join("b"), "").unwrap();
        Ok(())
    }
}

#[test]
fn artefact_is_made_once() {
    let scratch = Scratch::new().unwrap();
    let cache = Cache::at(scratch.path());
    let fake = Fake::default();
    assert!(cache.find(&fake).is_none());
    let message = cache.require(&fake).unwrap_err().to_string();
    assert!(message.contains("fake-1") && message.contains("testbed -- setup"), "{message}");
    let home = cache.ensure(&fake, false).unwrap();
    assert_eq!(cache.ensure(&fake, false).unwrap(), home);
    assert_eq!(fake.made(), 1);
    assert_eq!(fs::read_to_string(home.join("bin/a")).unwrap(), home.to_str().unwrap());
    cache.ensure(&fake, true).unwrap();
    assert_eq!(fake.made(), 2, "a refresh makes it again");
}

#[test]
fn broken_artefact_is_made_again() {
    let scratch = Scratch::new().unwrap();
    let cache = Cache::at(scratch.path());
    let fake = Fake::default();
    let home = cache.ensure(&fake, false).unwrap();
    let breakages: [&dyn Fn(); 4] = [
        &|| fs::remove_file(home.join("b")).unwrap(),
        &|| fs::write(home.join("bin/a"), "short").unwrap(),
        &|| fs::remove_file(home.join(".complete")).unwrap(),
        &|| fs::rename(&home, home.with_file_name(".fake-1.partial")).unwrap(),
    ];
    for (number, breakage) in (2..).zip(breakages) {
        breakage();
        assert!(cache.find(&fake).is_none());
        cache.ensure(&fake, false).unwrap();
        assert_eq!(fake.made(), number);
        assert!(cache.find(&fake).is_some());
    }
}

#[test]
fn failed_attempt_leaves_no_artefact() {
    let scratch = Scratch::new().unwrap();
    let cache = Cache::at(scratch.path());
    cache.ensure(&Fake { fails: true, ..Fake::default() }, false).unwrap_err();
    assert!(cache.find(&Fake::default()).is_none());
    cache.ensure(&Fake::default(), false).unwrap();
}

#[test]
fn concurrent_callers_make_an_artefact_once() {
    let scratch = Scratch::new().unwrap();
    let cache = Cache::at(scratch.path());
    let fake = Fake::default();
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| cache.ensure(&fake, false).unwrap());
        }
    });
    assert_eq!(fake.made(), 1);
}
