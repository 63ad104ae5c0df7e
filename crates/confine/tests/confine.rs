//! `htc-confine`: what a program may still do that it started.

use std::fs;
use std::path::Path;
use std::process::Command;

use htc_confine::kernel_has_landlock;

#[test]
fn files_move_within_granted_folders_and_never_out_of_them() {
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
    let allowed = |options: &[&str], lines: &[&'static str]| allowed(folder, options, lines);
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

#[test]
fn plain_folder_gets_no_links_and_no_folders() {
    let scratch = tempfile::tempdir().unwrap();
    let folder = scratch.path();
    let prepare = || {
        for name in ["other", "own"] {
            let _ = fs::remove_dir_all(folder.join(name));
            fs::create_dir_all(folder.join(name).join("work/deep")).unwrap();
            fs::write(folder.join(name).join("file"), name).unwrap();
        }
        fs::write(folder.join("own/script"), "#!/bin/sh\n").unwrap();
        fs::set_permissions(folder.join("own/script"), std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
        std::os::unix::fs::symlink("/etc/passwd", folder.join("own/work/link")).unwrap();
        std::os::unix::fs::symlink("/etc/passwd", folder.join("own/work/deep/link")).unwrap();
    };
    let may = [
        "echo x >>own/file && echo x >own/new && rm own/new && own/script",
        "i=$(stat -c %i own/file) && mv own/file own/work/deep && mv own/work/deep/file own/ && [ $(stat -c %i own/file) = $i ]",
        "cd own/work && mkdir more && ln -s x more/link && mkfifo more/pipe && ln more/link more/same && rm -r more",
        "python3 -c 'import socket; socket.socket(socket.AF_UNIX).bind(\"own/work/socket\")'",
        "rm -r own/work",
    ];
    let may_not = [
        "ln -s /etc/passwd own/link",
        "mv own/work/link own/",
        "ln -P own/work/link own/same",
        // RENAME_EXCHANGE, from and to the working directory.
        "python3 -c 'import ctypes; exit(ctypes.CDLL(None).renameat2(-100, b\"own/work/link\", -100, b\"own/file\", 2))'",
        "mkdir own/folder",
        "mv -T own/work own/folder",
        "mv own/work/deep own/",
        "mkfifo own/pipe",
        "python3 -c 'import socket; socket.socket(socket.AF_UNIX).bind(\"own/socket\")'",
        "echo x >other/file",
        "mv own other/",
    ];
    for line in may.iter().chain(&may_not) {
        prepare();
        let could = !allowed(folder, &["--plain=own", "--write=own/work"], &[*line]).is_empty();
        assert_eq!(could, may.contains(line), "{line}");
        prepare();
        assert_eq!(allowed(folder, &["--write=/"], &[*line]), [*line]);
    }
}

#[test]
fn process_changes_only_its_own_resource_limits() {
    let folder = Path::new("/");
    let own = ["ulimit -n 100 && [ $(ulimit -n) = 100 ]", "prlimit --pid $$ --nofile >/dev/null; [ $? = 0 ]"];
    let others = ["prlimit --pid $$ --nofile=99:99; [ $? = 0 ]"];
    assert_eq!(allowed(folder, &["--write=/", "--own-limits"], &own), own);
    assert_eq!(allowed(folder, &["--write=/", "--own-limits"], &others), Vec::<&str>::new());
    assert_eq!(allowed(folder, &["--write=/"], &others), others);
}

/// Runs each line by itself, confined by these options beside the programs of the shell. Returns those that succeed.
fn allowed(folder: &Path, options: &[&str], lines: &[&'static str]) -> Vec<&'static str> {
    let run = |line: &&&str| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_htc-confine"));
        command.args(["--landlock", "--read=/usr", "--read=/bin", "--read=/lib", "--read=/lib64"]);
        command.arg("--write=/dev/null").args(options).args(["--", "/bin/sh", "-c", line]);
        command.current_dir(folder).output().is_ok_and(|output| output.status.success())
    };
    lines.iter().filter(run).copied().collect()
}
