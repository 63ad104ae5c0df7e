//! Scenarios as tests with each version of HTCondor. All of them run with both: in `make test` those that are `both`, in which
//! what HTCondor says or does may differ, and the others with one version; in `make test-long` these with the other version, too.

macro_rules! on_versions {
    (
        $(both: $($both:ident::$with_both:ident),+;)?
        $(trixie: $($trixie:ident::$with_trixie:ident),+;)?
        $(sid: $($sid:ident::$with_sid:ident),+;)?
    ) => {
        mod trixie {
            $($(#[test] fn $with_both() { super::$both::$with_both(testbed::Version::Trixie); })+)?
            $($(#[test] fn $with_trixie() { super::$trixie::$with_trixie(testbed::Version::Trixie); })+)?
            $($(
                #[test]
                #[ignore = "HTCondor's version makes no difference: make test-long"]
                fn $with_sid() { super::$sid::$with_sid(testbed::Version::Trixie); }
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
        }
    };
}
