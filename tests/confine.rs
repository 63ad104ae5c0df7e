//! `htc-confine`: what a program may still do that it started.

use std::fs;
use std::process::Command;

use htc_operator::confine::kernel_has_landlock;

#[test]
fn files_move_within_their_folders_and_nothing_leads_out_of_them() {
    assert!(kernel_has_landlock());
    let scratch = tempfile::tempdir().unwrap();
    let folder = scratch.path();
    for name in ["own", "own.tmp", "logs", "other"] {
        fs::create_dir(folder.join(name)).unwrap();
        fs::write(folder.join(name).join("file"), name).unwrap();
    }
    fs::write(folder.join("own/script"), "#!/bin/sh\n").unwrap();
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    fs::set_permissions(folder.join("own/script"), mode).unwrap();
    let (may, may_not): (Vec<&'static str>, Vec<&'static str>) = (
        vec![
            "echo x >own/new && cat own/file own.tmp/file logs/file && mkdir own/deep && rm own/new && rmdir own/deep",
            "mv own/file own.tmp/moved && mv own.tmp/moved own/file",
            "ln own/file own.tmp/same && rm own.tmp/same",
            "echo x >>logs/file && mv logs/file logs/file.old && mv logs/file.old logs/file",
        ],
        vec![
            "cat other/file",
            "echo x >other/file",
            "ls other",
            "rm other/file",
            "ln other/file own/link",
            "ln -s ../other/file own/link",
            "ln own/file other/link",
            "mv own/file other/moved && [ ! -e own/file ]",
            "ln logs/file own/link",
            "ln own/file logs/link",
            "mkfifo own/pipe",
            "own/script",
            "echo x >new",
        ],
    );
    // Runs each line by itself, confined; those that succeed.
    let allowed = |options: &[&str], lines: &[&'static str]| -> Vec<&'static str> {
        let run = |line: &&&str| {
            let mut command = Command::new(env!("CARGO_BIN_EXE_htc-confine"));
            command.args(["--landlock", "--read=/usr", "--read=/bin", "--read=/lib", "--read=/lib64"]);
            command.arg("--write=/dev/null").args(options).args(["--", "/bin/sh", "-c", line]);
            command.current_dir(folder).output().unwrap().status.success()
        };
        lines.iter().filter(run).copied().collect()
    };
    let options = ["--files=own", "--files=own.tmp", "--logs=logs"];
    assert_eq!(allowed(&options, &may), may);
    assert_eq!(allowed(&options, &may_not), Vec::<&str>::new());
    // Each of them can be done here.
    assert_eq!(allowed(&["--write=/"], &may), may);
    for line in may_not {
        let _ = fs::remove_file(folder.join("own/link"));
        let _ = fs::write(folder.join("own/file"), "own");
        let _ = fs::write(folder.join("other/file"), "other");
        let _ = fs::write(folder.join("logs/file"), "logs");
        assert_eq!(allowed(&["--write=/"], &[line]), [line]);
    }
}
