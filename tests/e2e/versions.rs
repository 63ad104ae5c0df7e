//! Scenarios as tests with each version of HTCondor: `module::scenario::sid` and `module::scenario::trixie`.
//!
//! In `make test`, those that are `both`, in which what HTCondor says or does differs between the versions, run with both; most run with one
//! version; and those that are `long` are left to `make test-long`, which runs all with both.
//! Those with `kueue` run there, too, with the older version alone.
//! `docs/decisions/0053-make-test-shows-each-promise-once.md` says which test is what.

/// Makes a module for each scenario of a file, with a test for each version.
macro_rules! on_versions {
    ($($kind:ident: $($scenario:ident),+;)+) => {
        $($(mod $scenario { on_versions!(@$kind $scenario); })+)+
    };
    (@both $scenario:ident) => {
        on_versions!(@test trixie Trixie $scenario);
        on_versions!(@test sid Sid $scenario);
    };
    (@trixie $scenario:ident) => {
        on_versions!(@test trixie Trixie $scenario);
        on_versions!(@test sid Sid $scenario "HTCondor's version makes no difference: make test-long");
    };
    (@sid $scenario:ident) => {
        on_versions!(@test trixie Trixie $scenario "HTCondor's version makes no difference: make test-long");
        on_versions!(@test sid Sid $scenario);
    };
    (@long $scenario:ident) => {
        on_versions!(@test trixie Trixie $scenario "another test shows the same promise: make test-long");
        on_versions!(@test sid Sid $scenario "another test shows the same promise: make test-long");
    };
    (@kueue $scenario:ident) => {
        on_versions!(@test trixie Trixie $scenario "make test-long: Kueue is built from source for it");
    };
    (@test $name:ident $version:ident $scenario:ident $($why:literal)?) => {
        #[test]
        $(#[ignore = $why])?
        fn $name() {
            super::$scenario(testbed::Version::$version);
        }
    };
}
