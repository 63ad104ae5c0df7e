//! `spec.outputs` in `job.sh`: the files that come back.

use htc_submit::payload::OutputPattern;

use super::*;

/// A job of which this comes back.
fn selecting(outputs: &[&str], source: &str) -> Scratch {
    bed::turns::take(bed::Weight::Light);
    let (image, command) = (Image::of_the_site(image().to_str().unwrap()).unwrap(), Program::script("bash").unwrap());
    let outputs: Vec<OutputPattern> = outputs.iter().map(|text| OutputPattern::parse(text).unwrap()).collect();
    let payload = Payload { image_name: "centos", outputs: &outputs, ..bare(&image, &command, source) };
    Scratch::of(tempfile::tempdir().unwrap(), &payload)
}

/// What has come back as files of their own.
fn plain(scratch: &Scratch) -> Vec<String> {
    let ours = [".job.ad", "htc_output.tar", "job.sh", "payload.conf", "script.sh"];
    scratch.names().into_iter().filter(|name| !ours.contains(&name.as_str())).collect()
}

/// What has come back packed: files with their folders, and folders without anything.
fn packed(scratch: &Scratch) -> Vec<String> {
    let unpacked = unpacked(scratch);
    let listed =
        Process::new("find").args([".", "(", "-type", "f", "-o", "-empty", ")"]).current_dir(&unpacked).output();
    let mut names: Vec<String> =
        String::from_utf8(listed.unwrap().stdout).unwrap().lines().map(str::to_owned).collect();
    names.sort();
    names
}

const LEFT: &str = "mkdir -p results/deep plots/sub empty/er other; for name in top.root top.txt .hidden.root 'a,b.root' \
    results/a.root results/b.txt results/deep/c.root plots/1.pdf plots/10.pdf plots/sub/2.pdf plots/1.png other/log \
    plots/sub/log; do echo mine >\"$name\"; done; ln -s /etc results/link; mkfifo results/pipe; exit 3";

#[test]
fn paths_and_patterns_select_output() {
    for (outputs, files, in_archive) in [
        (&["top.root"][..], &["top.root"][..], &[][..]),
        (&["*.root"], &["top.root"], &["./.hidden.root", "./a,b.root"]),
        (&["results/", "top.t??"], &["top.txt"], &["./results/a.root", "./results/b.txt", "./results/deep/c.root"]),
        (&["plots/*.pdf"], &[], &["./plots/1.pdf", "./plots/10.pdf"]),
        (&["plots/[!0-9]*/[0-9].*"], &[], &["./plots/sub/2.pdf"]),
        (&["**/log"], &[], &["./other/log", "./plots/sub/log"]),
        (&["results/**/*.root"], &[], &["./results/a.root", "./results/deep/c.root"]),
        (&["em*"], &[], &["./empty/er"]),
        (&["*/e?"], &[], &["./empty/er"]),
    ] {
        for shell in SHELLS {
            let scratch = selecting(outputs, LEFT);
            let (code, _, stderr) = scratch.run(shell);
            assert_eq!(code, 3, "{shell} {outputs:?}: {stderr}");
            let omits = outputs.contains(&"results/");
            let files = omits.then_some("htc_output.omitted").into_iter().chain(files.iter().copied());
            assert_eq!(plain(&scratch), files.collect::<Vec<_>>(), "{shell} {outputs:?}");
            if in_archive.is_empty() {
                assert!(!scratch.names().contains(&"htc_output.tar".to_owned()), "{shell} {outputs:?}");
            } else {
                assert_eq!(packed(&scratch), in_archive, "{shell} {outputs:?}");
            }
            // Links and pipes among what is not chosen are not mentioned.
            let links = "htc-operator: links do not come back as output (1): copy what they lead to\n\
                         htc-operator: sockets, pipes and devices do not come back as output (1): write files\n";
            assert_eq!(stderr, if omits { links } else { "" }, "{shell} {outputs:?}");
        }
    }
}

#[test]
fn unmatched_pattern_is_reported_without_failure() {
    for shell in SHELLS {
        let scratch = selecting(&["nothing", "top.root", "no thing/*"], "echo mine >top.root");
        let message = "htc-operator: nothing matches 2 of spec.outputs: nothing, no thing/*\n";
        assert_eq!(scratch.run(shell), (0, String::new(), message.to_owned()), "{shell}");
        assert_eq!(plain(&scratch), ["top.root"], "{shell}");
        let scratch = selecting(&["1", "2", "3", "4", "5", "6", "7"], "mkdir -p a/b; echo mine >c");
        let message = "htc-operator: nothing matches 7 of spec.outputs: 1, 2, 3, 4, 5, ...\n";
        assert_eq!(scratch.run(shell), (0, String::new(), message.to_owned()), "{shell}");
        assert_eq!(scratch.names(), [".job.ad", "job.sh", "payload.conf", "script.sh"], "{shell}");
    }
}

/// Names with a meaning to a shell or to `find` match only themselves.
#[test]
fn patterns_are_never_executed() {
    let names = [
        "$(touch pwned)",
        "`touch pwned`",
        "';touch pwned;'",
        "\";touch pwned;\"",
        "${IFS}",
        "-delete",
        "-rf",
        "-o -name pwned",
        "!",
        "(",
        "\\)".trim_start_matches('\\'),
        "{}",
        ";",
        " blank ",
        "~",
        "#x",
        "a^b$",
        "a|b",
        "a+b{1}",
        "EOF",
        "$outputs",
        "end",
        "env A B",
        "ä",
    ];
    let quoted = |name: &str| format!("'{}'", name.replace('\'', "'\\''"));
    let all: String = names.iter().map(|name| format!("echo mine >./{}; ", quoted(name))).collect::<Vec<_>>().concat();
    let source = format!("{all} for n in other pwned2 aab b a 'x y'; do echo >\"$n\"; done");
    for shell in SHELLS {
        let scratch = selecting(&names, &source);
        let (code, _, stderr) = scratch.run(shell);
        assert_eq!((code, stderr.as_str()), (0, ""), "{shell}");
        let mut came = plain(&scratch);
        came.extend(packed(&scratch).iter().map(|name| name.trim_start_matches("./").to_owned()));
        came.sort();
        let mut wanted = names.map(str::to_owned);
        wanted.sort();
        assert_eq!(came, wanted, "{shell}");
        for name in &names[..8] {
            let scratch = selecting(&[name], "echo mine >other; echo mine >pwned");
            let (code, _, stderr) = scratch.run(shell);
            assert_eq!(code, 0, "{shell} {name}: {stderr}");
            assert!(stderr.ends_with(&format!("of spec.outputs: {name}\n")), "{shell}: {stderr}");
            assert!(plain(&scratch).is_empty(), "{shell} {name}: {:?}", scratch.names());
        }
    }
}

/// Unselected output is removed; targets of links in it are not.
#[test]
fn link_targets_outside_the_output_are_kept() {
    for shell in SHELLS {
        let outside = tempfile::tempdir().unwrap();
        std::fs::create_dir(outside.path().join("folder")).unwrap();
        std::fs::write(outside.path().join("folder/kept"), "kept").unwrap();
        if is_root() {
            for path in [outside.path().to_owned(), outside.path().join("folder"), outside.path().join("folder/kept")] {
                chown(path, Some(NOBODY), Some(NOBODY)).unwrap();
            }
        }
        let at = outside.path().display();
        let source =
            format!("ln -s {at} link; mkdir d; ln -s {at}/folder d/link; ln -s {at}/folder/kept file; chmod 0 d");
        let scratch = selecting(&["nothing", "link/folder/*", "d/link/*"], &source);
        assert_eq!(scratch.run(shell).0, 0, "{shell}");
        assert_eq!(std::fs::read_to_string(outside.path().join("folder/kept")).unwrap(), "kept", "{shell}");
        assert_eq!(scratch.names(), [".job.ad", "job.sh", "payload.conf", "script.sh"], "{shell}");
    }
}

#[test]
fn next_run_finds_selected_output() {
    for shell in SHELLS {
        let scratch = selecting(&["kept"], "ls; echo mine >kept; echo mine >other; exit 4");
        assert_eq!(scratch.run(shell), (4, "script.sh\n".to_owned(), String::new()), "{shell}");
        assert_eq!(scratch.run(shell).1, "kept\nscript.sh\n", "{shell}");
    }
}

/// Names with line feeds, and bytes that are no text, are names like others.
#[test]
fn patterns_match_names_with_newlines_and_raw_bytes() {
    for shell in SHELLS {
        let source = "mkdir -p $'a\\nb'; echo 1 >$'a\\nb/c'; echo 2 >$'\\xff\\xfe'; echo 3 >$'x\\ny'; echo 4 >'ä'";
        let scratch = selecting(&["a?b/c", "??"], source);
        assert_eq!(scratch.run(shell).0, 0, "{shell}");
        let unpacked = unpacked(&scratch);
        assert_eq!(std::fs::read_to_string(unpacked.path().join("a\nb/c")).unwrap(), "1\n", "{shell}");
        assert!(!unpacked.path().join("x\ny").exists(), "{shell}");
        // A ? is a byte, and this letter has two.
        assert_eq!(scratch.read("ä"), "4\n", "{shell}");
    }
}
