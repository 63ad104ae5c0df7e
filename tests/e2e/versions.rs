//! Scenarios as tests with each version of HTCondor.

macro_rules! on_both_versions {
    ($($room:ident::$scenario:ident),* $(,)?) => {
        mod trixie { $(#[test] fn $scenario() { super::$room::$scenario(testbed::Version::Trixie); })* }
        mod sid { $(#[test] fn $scenario() { super::$room::$scenario(testbed::Version::Sid); })* }
    };
}
