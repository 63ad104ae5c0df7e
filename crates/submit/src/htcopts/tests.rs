//! Tests of complete texts.

use super::*;

/// Parses the options by the rules of a site that allows the attributes A, B, C and X.
fn parse(text: &str) -> Result<HtcOpts, HtcOptsError> {
    HtcOpts::parse(
        text,
        &HtcOptsPolicy::of_the_site(Attributes::with(["A", "B", "C", "X"].map(|name| name.parse().unwrap()))),
    )
}

#[test]
fn options_are_rendered_in_canonical_form() {
    let text = "# c $x\n\n +JobFlavour= \"espresso\" \n\tmy.MaxRuntime =10\nREQUEST_MEMORY = 2 GB\nrequest_Licences = 1\nrank =\tMemory +\t1\n";
    let options = parse(text).unwrap();
    let lines = "MY.JobFlavour = \"espresso\"\nMY.MaxRuntime = 10\nrequest_memory = 2 GB\nrequest_licences = 1\nrank = Memory + 1\n";
    assert_eq!(options.render(), lines);
    assert_eq!(parse(lines).unwrap().render(), lines);
    assert!(!options.is_empty() && !options.may_rerun());
    for empty in ["", "\n", "  # only = a comment\n\n"] {
        assert!(parse(empty).unwrap().is_empty());
        assert_eq!(parse(empty).unwrap().render(), "");
    }
}

#[test]
fn error_messages_name_line_cause_and_remedy() {
    let cases = [
        (
            "rank = 1\nexecutable = x",
            "htcopts line 2: `executable` is not allowed: the operator sets it itself; the program goes into spec.script.source",
        ),
        (
            "+Z = 1",
            "htcopts line 1: `+Z` is not allowed here; allowed are AccountingGroup, BigMemJob, CephFS_IO, DESIRED_Sites, FERMIHTC_AutoRelease, FERMIHTC_GraceLifetime, FERMIHTC_GraceMemory, GPUJobLength, JobCategory, JobDurationCategory, JobFlavor, JobFlavour, JobType, MaxRuntime, MaxRuntimeHours, MaxWallTimeMins, MyProject, ProjectName, RemoteJob, UNDESIRED_Sites, WantFlocking, WantGPULab, WantGlideIn, is_resumable, A, B, C, X. The operator's administrator can allow more with --allow-attribute",
        ),
        (
            "+DataReuseManifestSHA256 = \"/etc/passwd\"",
            "htcopts line 1: `+DataReuseManifestSHA256` is not allowed: HTCondor uses this name, or names that begin so, itself; choose another name",
        ),
        ("+RequestMemory = 1", "htcopts line 1: `+RequestMemory` is not allowed: write `request_memory = …`"),
        (
            "+A = 1\n# x\nMY.a = 2",
            "htcopts line 3: `MY.a` conflicts with `MY.A` on line 1: both set the same thing; remove one of them",
        ),
        ("queue 5", "htcopts line 1: `queue` is not allowed: only `key = value` lines are"),
        (
            "+X = espresso beans",
            "htcopts line 1: `MY.X` expects a ClassAd expression (a string in double quotes, a number, or for example `TARGET.Memory > 2000`): `b` is not allowed here (put text in double quotes)",
        ),
        ("a\x1b[31m", "htcopts line 1: there is a control character (U+001B); write plain text with Unix line ends"),
    ];
    for (text, message) in cases {
        assert_eq!(parse(text).unwrap_err().to_string(), message);
    }
    let long = parse(&"ä".repeat(500)).unwrap_err().to_string();
    assert!(long.chars().count() < 200, "{long}");
}

#[test]
fn text_is_quoted_and_numbers_are_not() {
    let cases = [
        ("+JobFlavour = workday", "`+JobFlavour` expects text in double quotes: write `+JobFlavour = \"workday\"`"),
        ("MY.jobflavour = workday", "write `+jobflavour = \"workday\"`"),
        ("+ProjectName = true", "write `+ProjectName = \"true\"`"),
        ("+JobFlavour = 2", "write `+JobFlavour = \"2\"`"),
        ("+X = word", "write `+X = \"word\"`"),
        ("+JobFlavour = 'workday'", "`+JobFlavour` expects text in double quotes: write `+JobFlavour = \"workday\"`"),
        ("+JobFlavour = \"workday", "`MY.JobFlavour` expects a ClassAd expression"),
        ("+MaxRuntime = \"3600\"", "`+MaxRuntime` expects a number without quotes: write `+MaxRuntime = 3600`"),
    ];
    for (line, message) in cases {
        let error = parse(line).unwrap_err().to_string();
        assert!(error.contains(message), "{line}: {error}");
    }
    for line in [
        "+JobFlavour = \"workday\"",
        "+JobFlavour = undefined",
        "+JobFlavour = MY.X",
        "+JobFlavour = ifThenElse(MY.X, \"workday\", \"longlunch\")",
        "+MaxRuntime = 3600",
        "+MaxRuntime = 60 * 60",
        "+WantFlocking = True",
        "+X = 1",
    ] {
        assert!(parse(line).is_ok(), "{line}: {:?}", parse(line));
    }
}

#[test]
fn container_attributes_of_the_site_are_refused() {
    for name in ["WantOS", "REQUIRED_OS", "containeros"] {
        let error = parse(&format!("+{name} = \"el7\"")).unwrap_err().to_string();
        assert!(error.contains("with spec.script.image"), "{error}");
        let allowed = HtcOptsPolicy::of_the_site(Attributes::with([name.parse().unwrap()]));
        assert!(HtcOpts::parse(&format!("+{name} = \"el7\""), &allowed).is_ok(), "{name}");
    }
}

#[test]
fn size_of_htcopts_is_bounded() {
    assert!(parse(&"#".repeat(MAX_BYTES + 1)).is_err());
    assert!(parse(&"#\n".repeat(MAX_LINES)).is_ok());
    assert!(parse(&"#\n".repeat(MAX_LINES + 1)).is_err());
    assert!(parse(&format!("+X = \"{}\"", "x".repeat(MAX_VALUE_BYTES))).is_err());
}

#[test]
fn retries_holds_and_periodic_commands_may_rerun_jobs() {
    for text in [
        "max_retries = 1",
        "retry_until = 3",
        "success_exit_code = 1",
        "on_exit_hold = true",
        "periodic_remove = false",
        "allowed_job_duration = 9",
    ] {
        assert!(parse(text).unwrap().may_rerun(), "{text}");
    }
    for text in ["", "max_retries = 0", "+X = 1", "request_cpus = 2", "rank = 1"] {
        assert!(!parse(text).unwrap().may_rerun(), "{text}");
    }
}

#[test]
fn user_option_overrides_the_equivalent_site_option() {
    let merged = |site: &str, user: &str| parse(site).unwrap().render_overridden_by(&parse(user).unwrap());
    assert_eq!(merged("+MaxRuntime = 1200\nrank = 1", "my.maxRUNTIME = 10"), "rank = 1\nMY.maxRUNTIME = 10\n");
    assert_eq!(
        merged("accounting_group = a\naccounting_group_user = b", "+AccountingGroup = \"c\""),
        "MY.AccountingGroup = \"c\"\n"
    );
    assert_eq!(
        merged("accounting_group = a\naccounting_group_user = b", "accounting_group = c"),
        "accounting_group = c\n"
    );
    assert_eq!(
        merged("accounting_group = a", "accounting_group_user = b"),
        "accounting_group = a\naccounting_group_user = b\n"
    );
    assert_eq!(merged("", ""), "");
}

/// Parses the options by the rules of a site without settings of its own.
fn usual(text: &str) -> Result<HtcOpts, String> {
    HtcOpts::parse(text, &HtcOptsPolicy::default()).map_err(|error| error.to_string())
}

#[test]
fn hold_reason_is_one_short_string_literal() {
    for key in ["on_exit_hold_reason", "periodic_hold_reason"] {
        assert!(parse(&format!("{key} = \"over its limit\"")).is_ok());
        let long = format!("\"{}\"", "x".repeat(257));
        for value in ["strcat(\"a\", \"b\")", "HoldReason", "\"a\" ?: \"b\"", "7", "undefined", long.as_str()] {
            let message = parse(&format!("{key} = {value}")).unwrap_err().to_string();
            assert!(message.contains("expects one text in double quotes, of at most 256 characters"), "{message}");
        }
    }
}

#[test]
fn expressions_cannot_reference_other_options() {
    for text in [
        "request_memory = 2000\nperiodic_hold = MemoryUsage > RequestMemory",
        "request_memory = ifThenElse(isUndefined(MemoryUsage), 2000, MemoryUsage * 2)\nrequirements = TARGET.Memory >= MY.RequestMemory",
        "request_licences = 1\nrank = Requestlicences * 2",
        "+A = \"short\"\n+B = strcat(A, \"er\")",
        "+A = regexp(\"^node[0-9]+[.]\", B)\n+X = A || A",
    ] {
        assert!(parse(text).is_ok(), "{text}: {:?}", parse(text));
    }
    let long = "x".repeat(300);
    for (text, message) in [
        (
            format!("+A = \"{long}\"\n+B = strcat(A, A)"),
            "htcopts line 2: `MY.B` refers to what `MY.A` sets, which can have more than 256 bytes or takes long to evaluate; write its value here instead",
        ),
        (
            "+C = MY.B\n+B = MY.A\n+A = 1".to_owned(),
            "htcopts line 1: `MY.C` refers to what `MY.B` sets, which refers to an attribute of these options itself; write its value here instead",
        ),
        ("+A = MY.a + 1".to_owned(), "`MY.A` refers to what `MY.A` sets, which refers to"),
        ("+A = regexp(\"x.*y\", B)\n+X = A || A".to_owned(), "takes long to evaluate"),
        (
            format!("rank = ifThenElse(q, 1, \"{long}\")\n+A = strcat(TARGET.rank, 1)"),
            "`MY.A` refers to what `rank` sets",
        ),
        (
            format!("+A = strcat({})", ["Name"; 17].join(", ")),
            "`MY.A` expects a ClassAd expression (a string in double quotes, a number, or for example `TARGET.Memory > 2000`): the value of strcat can grow to 4352 bytes, more than 4096",
        ),
    ] {
        let said = parse(&text).unwrap_err().to_string();
        assert!(said.contains(message), "{said}");
    }
    let mut options = parse(&format!("+A = \"{long}\"")).unwrap();
    let said = options.add("requirements", "size(MY.A) > 2").unwrap_err().to_string();
    assert!(said.starts_with("`requirements` refers to what `MY.A` sets"), "{said}");
}

#[test]
fn accounting_groups_are_allowed_by_the_site() {
    let site = |text: &str| {
        let groups = ["group_a.*", "group_b"].map(|pattern| pattern.parse().unwrap()).to_vec();
        let policy = HtcOptsPolicy { accounting_groups: AccountingGroups::These(groups), ..HtcOptsPolicy::default() };
        HtcOpts::parse(text, &policy).map_err(|error| error.to_string())
    };
    for text in [
        "accounting_group = group_a",
        "accounting_group = group_a.c\naccounting_group_user = me",
        "accounting_group_user = me\naccounting_group = Group_A",
        "accounting_group = group_b",
        "+AccountingGroup = \"group_a.c.me\"",
        "nice_user = true",
    ] {
        assert!(site(text).is_ok(), "{text}: {:?}", site(text));
    }
    let listed =
        "the accounting group `group_b.me` is not allowed here; allowed are group_a.*, group_b. The operator's";
    for (text, message) in [
        ("rank = 1\naccounting_group_user = me\naccounting_group = group_b", listed),
        ("+AccountingGroup = \"group_c\"", "the accounting group `group_c` is not allowed here"),
        ("accounting_group = group_ab", "the accounting group `group_ab` is not allowed here"),
        ("accounting_group_user = other", "`accounting_group_user` needs `accounting_group` beside it"),
        ("+AccountingGroup = strcat(\"group_\", \"c\")", "expects a group in double quotes"),
        ("+AccountingGroup = MY.Owner", "expects a group in double quotes"),
    ] {
        let said = site(text).unwrap_err();
        assert!(said.contains(message), "{said}");
    }
    assert!(
        usual("accounting_group = group_a").unwrap_err().contains("not allowed here; none is allowed. The operator's")
    );
    assert!(parse("accounting_group_user = other").is_ok(), "the site's own");
}

#[test]
fn priorities_are_bounded_by_the_site() {
    assert!(usual("priority = 0").is_ok() && usual("priority = -20").is_ok());
    let said = usual("priority = 2147483647").unwrap_err();
    assert!(said.contains("`priority` may be -1000..0 here, not 2147483647"), "{said}");
    let policy = HtcOptsPolicy { priorities: "-5..5".parse().unwrap(), ..HtcOptsPolicy::default() };
    assert!(HtcOpts::parse("priority = 5", &policy).is_ok() && HtcOpts::parse("priority = 6", &policy).is_err());
    assert!(parse("priority = 2147483647").is_ok(), "the site's own");
}
