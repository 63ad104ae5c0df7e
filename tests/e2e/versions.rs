//! Scenarios as tests with each version of HTCondor. In `make test`, those that are `both`, in which what HTCondor says or does differs
//! between the versions, run with both; most run with one version; and those that are `long` are left to `make test-long`, which runs all with
//! both. `docs/decisions/0053-make-test-shows-each-promise-once.md` says which test is what.

macro_rules! on_versions {
    (
        $(both: $($both:ident::$with_both:ident),+;)?
        $(trixie: $($trixie:ident::$with_trixie:ident),+;)?
        $(sid: $($sid:ident::$with_sid:ident),+;)?
        $(long: $($long:ident::$with_long:ident),+;)?
    ) => {
        mod trixie {
            $($(#[test] fn $with_both() { super::$both::$with_both(testbed::Version::Trixie); })+)?
            $($(#[test] fn $with_trixie() { super::$trixie::$with_trixie(testbed::Version::Trixie); })+)?
            $($(
                #[test]
                #[ignore = "HTCondor's version makes no difference: make test-long"]
                fn $with_sid() { super::$sid::$with_sid(testbed::Version::Trixie); }
            )+)?
            $($(
                #[test]
                #[ignore = "another test shows the same promise: make test-long"]
                fn $with_long() { super::$long::$with_long(testbed::Version::Trixie); }
            )+)?
        }
        mod sid {
            $($(#[test] fn $with_both() { super::$both::$with_both(testbed::Version::Sid); })+)?
            $($(#[test] fn $with_sid() { super::$sid::$with_sid(testbed::Version::Sid); })+)?
            $($(
                #[test]
                #[ignore = "HTCondor's version makes no difference: make test-long"]
                fn $with_trixie() { super::$trixie::$with_trixie(testbed::Version::Sid); }
            )+)?
            $($(
                #[test]
                #[ignore = "another test shows the same promise: make test-long"]
                fn $with_long() { super::$long::$with_long(testbed::Version::Sid); }
            )+)?
        }
    };
}
