//! The environment of payloads, as the table in docs/using.md has it.

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use bed::{Bed, Namespace, htcjob, is_true};
use serde_json::{Value, json};
use testbed::environment::{Column, INTERPRETER, INTERPRETER_NAME, PROBE, differences};
use testbed::{PoolOptions, Scratch, Version, processes};

on_versions! {
    both: payload_on_a_node_has_the_documented_environment, home_of_env_is_the_variable_only;
    trixie: payload_leaves_no_core_file;
}

/// Writes the program that only the `PATH` of the payload has.
pub fn write_interpreter(folder: &Path) {
    let program = folder.join(INTERPRETER_NAME);
    std::fs::write(&program, INTERPRETER).unwrap();
    std::fs::set_permissions(program, Permissions::from_mode(0o755)).unwrap();
}

/// Makes an HTCJob print its environment, and leave a process behind that has `mark` as an argument.
pub fn printing(mut object: Value, folder: &str, mark: &str) -> Value {
    let leaves = format!("(sh -c 'sleep 600; :' '{mark}' </dev/null >/dev/null 2>&1 &)\n");
    object["spec"]["script"]["source"] = [PROBE, &leaves].concat().into();
    object["spec"]["script"]["command"] = INTERPRETER_NAME.into();
    object["spec"]["env"] = json!([{ "name": "PATH", "value": format!("{folder}:/bin") }]);
    object
}

/// Waits for the end of that HTCJob, and compares.
pub fn assert_documented(here: &Namespace<'_>, name: &str, column: Column, mark: &str) {
    let ended = here.wait_ended(name);
    here.wait_output(name);
    let text = |file: &str| std::fs::read_to_string(here.output(name, 0).join(file)).unwrap();
    assert!(is_true(&ended, "Complete"), "{ended:#}\n{}", text("err"));
    let page = std::fs::read_to_string(bed::checkout().join("docs/using.md")).unwrap();
    assert_eq!(differences(&page, column, &text("out")), Vec::<String>::new(), "{}", text("out"));
    assert_eq!(processes::that_name(Path::new(mark)), Vec::<u32>::new());
}

fn payload_on_a_node_has_the_documented_environment(version: Version) {
    let folder = Scratch::new().unwrap();
    write_interpreter(folder.path());
    let at = folder.path().display().to_string();
    let bed = Bed::new(version, &PoolOptions::default(), &[&format!("--bind={at}")]);
    bed.start_operator();
    let (here, mark) = (bed.namespace(), format!("left-in-{at}"));
    here.create(&printing(htcjob("environment", ""), &at, &mark));
    assert_documented(&here, "environment", Column::Apptainer, &mark);
}

fn home_of_env_is_the_variable_only(version: Version) {
    let bed = Bed::shared(version);
    let here = bed.namespace();
    for (name, home, source) in
        [("own", "/htc_run", "touch ~/made; ls /htc_run/made"), ("of-the-image", "/usr", "ls ~/bin/bash")]
    {
        let mut object = htcjob(name, &format!("echo $HOME; {source}"));
        object["spec"]["env"] = json!([{ "name": "HOME", "value": home }]);
        here.create(&object);
        let ended = here.wait_ended(name);
        here.wait_output(name);
        let out = std::fs::read_to_string(here.output(name, 0).join("out")).unwrap();
        assert!(is_true(&ended, "Complete") && out.starts_with(&format!("{home}\n")), "{ended:#}\n{out}");
    }
    let mut wrong = htcjob("wrong", "true");
    wrong["spec"]["env"] = json!([{ "name": "HOME", "value": "/a:/b" }]);
    here.create(&wrong);
    let message = here.wait_says("wrong", "Submitted", "False", "InvalidSpec");
    assert!(message.contains("write an absolute path without a colon"), "{message}");
}

/// The payload asks for core files of any size.
fn payload_leaves_no_core_file(version: Version) {
    let bed = Bed::shared(version);
    let here = bed.namespace();
    let uid = here.create(&htcjob("crash", "ulimit -c unlimited; ulimit -Hc; kill -SEGV $$"));
    let ended = here.wait_ended("crash");
    assert!(is_true(&ended, "Failed"), "{ended:#}");
    here.wait_output("crash");
    let files = std::fs::read_dir(here.output("crash", 0)).unwrap();
    let mut files: Vec<_> = files.map(|file| file.unwrap().file_name().into_string().unwrap()).collect();
    files.sort();
    assert_eq!(files, ["err", "out"]);
    assert_eq!(std::fs::read_to_string(here.output("crash", 0).join("out")).unwrap(), "0\n");
    here.wait_nothing_left(&uid);
    assert_eq!(bed.history(&bed::of(&uid), &["CoreSize"]), [["0"]]);
}
