//! Whatever a user writes: the ad that HTCondor's own `condor_submit -dry-run` makes of it is what was meant, or the text
//! was refused. Both versions of HTCondor are asked.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command as Process, Stdio};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use htc_submit::description::{ClusterSettings, NodeFaultRules, QueueItem, files, submit_description};
use htc_submit::htcopts::{AttributeName, Attributes, HtcOpts, HtcOptsError, HtcOptsPolicy};
use htc_submit::payload::{Image, ImageMap, Payload, PayloadCommand, Program, sandbox_files};
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};

mod strategies;

use self::strategies::{hostile_text, key, value};

const VERSIONS: [&str; 2] = ["TRIXIE", "SID"];

/// Folder that holds `usr/bin/condor_submit` of that version.
fn condor_root(version: &str) -> PathBuf {
    let version = match version {
        "TRIXIE" => testbed::Version::Trixie,
        _ => testbed::Version::Sid,
    };
    testbed::Assets::locate().unwrap().condor(version).to_owned()
}

type Ad = BTreeMap<String, String>;

/// A sandbox and an output folder that a description can name.
struct Folders {
    root: tempfile::TempDir,
}

impl Folders {
    fn new() -> Self {
        bed::turns::take(bed::Weight::Light);
        let root = tempfile::tempdir().unwrap();
        for folder in ["sandbox", "out0", "out1", "out2"] {
            std::fs::create_dir(root.path().join(folder)).unwrap();
        }
        let image = Image::resolve("centos", &ImageMap::new()).unwrap();
        let command = Program::script("bash").unwrap();
        let payload = Payload {
            name: "test",
            image: &image,
            image_name: "centos",
            private: false,
            image_cache: None,
            program: &command,
            source: "exit 0",
            binds: &[],
            volumes: &[],
            callback: None,
            files: &[],
            fetched: &[],
            secret_files: &[],
            secret_env: &[],
            env: &[],
            outputs: &[],
        };
        for file in sandbox_files(&payload).unwrap() {
            std::fs::write(root.path().join("sandbox").join(file.name), file.contents).unwrap();
        }
        Self { root }
    }

    fn path(&self, name: &str) -> String {
        self.root.path().join(name).to_str().unwrap().to_owned()
    }

    fn describe(&self, site: &HtcOpts, user: &HtcOpts, rows: u32) -> String {
        let outputs: Vec<String> = (0..rows).map(|row| self.path(&format!("out{row}"))).collect();
        let sandbox = self.path("sandbox");
        let jobs: Vec<QueueItem> = (0..rows)
            .zip(&outputs)
            .map(|(index, output)| QueueItem {
                uid: "6a1c7f2e-0000-4000-8000-000000000001",
                attempt: 2,
                index: index + 10,
                batch_name: "default/test",
                sandbox: &sandbox,
                output,
                item: (index % 2 == 1).then_some("$(x), \"y\""),
                image: "docker://python:3.12",
            })
            .collect();
        let common = ClusterSettings {
            operator: "uid/ns/operator",
            not_after: 1_800_000_000,
            site_defaults: site,
            options: user,
            callback: false,
            files: false,
            output_limit: Some(7),
            node_faults: NodeFaultRules { retries: 0, pause: 30 },
            mini_cluster: false,
            volumes: None,
            workers: None,
        };
        submit_description(&common, &jobs).unwrap()
    }
}

/// Whether `condor_submit -dry-run`, called as the operator calls it, ended well; its standard output and error.
fn raw_dry_run(version: &str, folder: &Path, description: &str) -> (bool, String, String) {
    let mut child = Process::new(condor_root(version).join("usr/bin/condor_submit"))
        .args(["-spool", "-terse", "-dry-run", "-", "-"])
        .current_dir(folder)
        .env_clear()
        .env("PATH", "/usr/bin:/bin")
        .env("CONDOR_CONFIG", "/dev/null")
        .env("CONDOR_IDS", "65534.65534")
        .env("SECRET", "leaked")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(description.as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    (output.status.success(), text(output.stdout), text(output.stderr))
}

/// The attributes that HTCondor makes of a description, of the first job in full and of further ones what differs.
fn dry_run(version: &str, folder: &Path, description: &str) -> Result<Vec<Ad>, String> {
    let (success, stdout, stderr) = raw_dry_run(version, folder, description);
    if !success || stderr.contains("WARNING") || stderr.contains("ERROR") {
        return Err(format!("{version}: {stderr}\n{description}"));
    }
    let mut ads = vec![Ad::new()];
    for line in stdout.lines() {
        if line.is_empty() && !ads.last().unwrap().is_empty() {
            ads.push(Ad::new());
        } else if let Some((name, value)) = line.split_once('=')
            && !["QDate", "EnteredCurrentStatus", "StageInStart"].contains(&name)
        {
            let ad = ads.last_mut().unwrap();
            let before = ad.insert(name.to_owned(), value.to_owned());
            assert!(before.is_none(), "{name} twice in {stdout}");
        }
    }
    ads.retain(|ad| !ad.is_empty());
    Ok(ads)
}

/// The options of a site that allows the attributes A, X and Y.
fn try_parse(text: &str) -> Result<HtcOpts, HtcOptsError> {
    HtcOpts::parse(
        text,
        &HtcOptsPolicy::of_the_site(Attributes::with(["A", "X", "Y"].map(|name| name.parse().unwrap()))),
    )
}

fn parse(text: &str) -> HtcOpts {
    try_parse(text).unwrap()
}

/// Attributes that a submit command may change.
fn attributes_of(command: &str) -> Vec<String> {
    let fixed: &[&str] = match command {
        "accounting_group" => &["AcctGroup", "AcctGroupUser", "AccountingGroup"],
        "accounting_group_user" => &["AcctGroupUser", "AccountingGroup"],
        "max_retries" | "retry_until" => &["JobMaxRetries", "OnExitRemove", "OnExitHold"],
        "success_exit_code" => &["JobMaxRetries", "OnExitRemove", "OnExitHold", "JobSuccessExitCode"],
        "on_exit_hold" => &["OnExitHold"],
        "on_exit_remove" => &["OnExitRemove"],
        "on_exit_hold_reason" => &["OnExitHoldReason"],
        "periodic_hold" => &["PeriodicHold"],
        "periodic_remove" => &["PeriodicRemove"],
        "priority" => &["JobPrio"],
        "rank" => &["Rank"],
        "requirements" => &["Requirements"],
        "request_memory" => &["RequestMemory", "Requirements"],
        "request_cpus" => &["RequestCpus", "Requirements"],
        "request_disk" => &["RequestDisk", "Requirements"],
        "request_licences" => &["Requestlicences", "Requirements"],
        "concurrency_limits" => &["ConcurrencyLimits"],
        "notification" => &[],
        other => panic!("{other} is not in the table of this test"),
    };
    fixed.iter().map(ToString::to_string).collect()
}

/// Compares an expression with the way HTCondor prints it back.
fn same_expression(meant: &str, printed: &str) -> bool {
    let is_string = meant.starts_with('"') && meant.ends_with('"') && meant.matches('"').count() == 2;
    let squeezed = |text: &str| text.replace([' ', '\t'], "").to_ascii_lowercase();
    if is_string { meant == printed } else { squeezed(meant) == squeezed(printed) }
}

#[test]
fn whitespace_counts_only_in_strings() {
    assert!(same_expression(r#""a b" || -(0)"#, r#""a b" ||  -(0)"#));
    assert!(!same_expression(r#""a b""#, r#""a  b""#));
    assert!(!same_expression(r#"""#, ""));
}

#[test]
fn accepted_options_keep_their_meaning_in_the_ad() {
    let folders = Folders::new();
    let none = HtcOpts::default();
    let plain = folders.describe(&none, &none, 1);
    let bases = VERSIONS.map(|version| dry_run(version, folders.root.path(), &plain).unwrap().remove(0));
    let (mut accepted, mut refused) = (0, 0);
    let mut runner = TestRunner::new(Config { cases: 100, failure_persistence: None, ..Config::default() });
    let cases = std::cell::RefCell::new((&mut accepted, &mut refused));
    runner
        .run(&(key(), value()), |(key, value)| {
            let text = format!("{key} = {value}");
            let Ok(options) = try_parse(&text) else {
                *cases.borrow_mut().1 += 1;
                return Ok(());
            };
            if options.is_empty() {
                return Ok(());
            }
            *cases.borrow_mut().0 += 1;
            let lines = text.lines().filter(|line| !line.trim().is_empty()).count();
            prop_assert_eq!(lines, 1, "more than one line accepted: {:?}", text);
            let lower = key.trim().to_ascii_lowercase();
            let attribute = lower.strip_prefix('+').or(lower.strip_prefix("my."));
            let description = folders.describe(&none, &options, 1);
            for (version, base) in VERSIONS.iter().zip(&bases) {
                let ad = match dry_run(version, folders.root.path(), &description) {
                    Ok(mut ads) => ads.remove(0),
                    Err(message) => return Err(TestCaseError::fail(message)),
                };
                let may_change = attribute.map_or_else(|| attributes_of(&lower), |name| vec![name.to_owned()]);
                let names = base.keys().chain(ad.keys());
                for name in names.filter(|name| base.get(*name) != ad.get(*name)) {
                    let meant = may_change.iter().any(|one| one.eq_ignore_ascii_case(name));
                    prop_assert!(meant, "{version}: {text:?} changes {name} to {:?}", ad.get(name));
                }
                let meant = value.trim();
                let printed = match (attribute, lower.as_str()) {
                    (Some(name), _) => {
                        ad.iter().find(|(one, _)| one.eq_ignore_ascii_case(name)).map(|(_, value)| value)
                    }
                    // With the operator's own reason to remove a job before it.
                    (None, "periodic_remove") => {
                        let printed = ad.get(&may_change[0]).map_or("nothing", String::as_str);
                        let both = format!("(StageInFinish ?: 0) > HTCNotAfter || ({meant})");
                        prop_assert!(same_expression(&both, printed), "{version}: {meant:?} became {printed:?}");
                        continue;
                    }
                    // They apply to the ends of payloads only.
                    (None, "on_exit_hold" | "on_exit_hold_reason" | "on_exit_remove") => {
                        let printed = ad.get(&may_change[0]).map_or("nothing", String::as_str);
                        let squeezed = |text: &str| text.replace([' ', '\t'], "").to_ascii_lowercase();
                        prop_assert!(
                            squeezed(printed).contains(&squeezed(meant)),
                            "{version}: {meant:?} became {printed:?}"
                        );
                        continue;
                    }
                    (None, "periodic_hold" | "priority" | "rank") => ad.get(&may_change[0]),
                    (None, _) => continue,
                };
                let printed = printed.map_or("nothing", String::as_str);
                prop_assert!(same_expression(meant, printed), "{version}: {meant:?} became {printed:?}");
            }
            Ok(())
        })
        .unwrap();
    assert!(
        accepted > 15 && refused > 15,
        "{accepted} accepted, {refused} refused: the generator is too tame or too wild"
    );
}

const ATTACKS: &str = r#"include command : touch /tmp/x
include : /etc/passwd
INCLUDE COMMAND INTO /tmp/x : true
use feature : GPUs
+X = $ENV(SECRET)
+X = "$(Process)"
+X = $RANDOM_CHOICE(1,2)
+X = $$(Arch)
rank = $F(x)
transfer_output_remaps = "out=/etc/cron.d/x"
transfer_input_files = /etc/shadow
input = /etc/shadow
x509userproxy = /etc/shadow
executable = /bin/sh
Executable=/bin/sh
arguments = x
environment = A=b
getenv = true
universe = local
queue 5
queue = 5
queue
queue x from (
log = /tmp/log
output = /tmp/x
+X @=end
rank @=end
@end
if true
if x == 1
else
endif
+DataReuseManifestSHA256 = "/etc/passwd"
MY.datareusemanifestsha256 = "/dev/zero"
+NobodyKnows = 1
+HTCJobUID = "x"
my.htcnotafter = 9999999999
+HtcOperator = "x"
MY.HTC = 1
+Owner = "root"
+Cmd = "/bin/sh"
+Iwd = "/"
+StageInFinish = 1
+JobStatus = 4
+TransferOutputRemaps = "out=/x"
+SingularityImage = "/x"
+SendCredential = true
+In = "/etc/shadow"
+LeaveJobInQueue = false
+X.Y = 1
+ X = 1
+ = 1
MY. = 1
+X =
+X
X = 1
htc_uid = 1
max_materialize = 1
hold = true
request_edchroot = "/"
leave_in_queue = false
+X = (1
+X = 1)
+X = "a
+X = "a" "b"
+X = [a=1]
+X = 'a'
+X = userHome("root")
+X = userMap("m", "x")
+X = eval("1")
+X = debug(1)
+X = 1; +Y = 2
+X = 1 # y
+X = 010
rank = ä
batch_name = x
dagman_log = x
remote_initialdir = /
notify_user = a@b
notification = always
error = x
warning : x"#;

#[test]
fn known_attacks_are_refused() {
    let with_escapes = [
        "+X = 1 \\",
        "\\",
        "# comment \\",
        "+X = \"a\\\"b\"",
        "+X = 1\r",
        "+X = \"\0\"",
        "+X = 1\u{85}",
        "+X = 1\n+x = 2",
    ];
    for text in ATTACKS.lines().chain(with_escapes) {
        let error = try_parse(text).expect_err(text).to_string();
        assert!(error.starts_with("htcopts line "), "{error}");
    }
    let deep = format!("+X = {}1{}", "(".repeat(600), ")".repeat(600));
    assert!(try_parse(&deep).is_err());
    assert!(try_parse(&format!("+X = {}1", "1 || ".repeat(300))).is_err());
}

/// The reason for the parser: the first operator passed such lines to `condor_submit`.
#[test]
fn condor_submit_itself_runs_included_commands_and_reads_the_environment() {
    let folders = Folders::new();
    for version in VERSIONS {
        let proof = folders.path(&format!("proof-{version}"));
        let text = format!("include command : touch {proof}\nexecutable = /bin/true\n+X = \"$ENV(SECRET)\"\nqueue\n");
        let (_, stdout, _) = raw_dry_run(version, folders.root.path(), &text);
        assert!(Path::new(&proof).exists(), "{version}");
        assert!(stdout.contains("X=\"leaked\""), "{version}: {stdout}");
    }
}

#[test]
fn attributes_written_by_htcondor_are_refused() {
    let folders = Folders::new();
    let options = parse(
        "request_gpus = 1\nmax_retries = 1\nsuccess_exit_code = 3\non_exit_hold_reason = \"x\"\naccounting_group = a",
    );
    for version in VERSIONS {
        let ads = dry_run(version, folders.root.path(), &folders.describe(&HtcOpts::default(), &options, 1)).unwrap();
        for name in ads[0].keys().filter(|name| *name != "AccountingGroup") {
            assert!(try_parse(&format!("+{name} = 1")).is_err(), "{version}: +{name} is accepted");
            assert!(name.parse::<AttributeName>().is_err(), "{version}: a site can allow {name}");
        }
    }
}

#[test]
fn user_options_override_site_defaults_in_any_spelling() {
    let folders = Folders::new();
    let site = parse(
        "+MaxRuntime = 1200\naccounting_group = group_a\naccounting_group_user = robot\nmax_retries = 3\nRank = Memory",
    );
    let user =
        parse("my.mAXrUNTIME = 10\n+AccountingGroup = \"group_u_X\"\nMAX_RETRIES = 0\n+JobFlavour = \"espresso\"");
    for version in VERSIONS {
        let ad = &dry_run(version, folders.root.path(), &folders.describe(&site, &user, 1)).unwrap()[0];
        let values: Vec<_> =
            ad.iter().filter(|(name, _)| name.eq_ignore_ascii_case("MaxRuntime")).map(|(_, v)| v.as_str()).collect();
        assert_eq!(values, ["10"], "{version}");
        assert_eq!(ad["AccountingGroup"], "\"group_u_X\"");
        assert!(!ad.contains_key("AcctGroup"));
        assert_eq!(
            (ad["JobMaxRetries"].as_str(), ad["Rank"].as_str(), ad["JobFlavour"].as_str()),
            ("0 + (NumHoldsByReason.JobPolicy ?: 0)", "Memory", "\"espresso\"")
        );
    }
}

#[test]
fn allowed_commands_are_known_to_htcondor() {
    let folders = Folders::new();
    let all = "accounting_group = a.b\naccounting_group_user = me\nallowed_execute_duration = 600\nallowed_job_duration = 60*60\n\
        concurrency_limits = db, licence:2\ngpus_maximum_capability = 9.0\ngpus_minimum_capability = 8\ngpus_minimum_memory = 4G\n\
        gpus_minimum_runtime = 12.0\njob_max_vacate_time = 30\nkeep_claim_idle = 20\nmax_job_retirement_time = 60\nmax_retries = 2\n\
        notification = Never\non_exit_hold = ExitCode == 3\non_exit_hold_reason = \"code 3\"\non_exit_hold_subcode = 3\n\
        on_exit_remove = ExitCode =!= 4\nperiodic_hold = NumJobStarts > 5\nperiodic_hold_reason = \"too often\"\nperiodic_hold_subcode = 5\n\
        periodic_release = HoldReasonCode == 34 && NumHolds < 3\nperiodic_remove = time() - QDate > 86400\nperiodic_vacate = false\n\
        priority = -5\nrank = TARGET.Memory\nrequest_cpus = 2\nrequest_disk = 2 GB\nrequest_gpus = 1\nrequest_memory = 1.5G\n\
        require_gpus = Capability >= 8.0\nrequirements = regexp(\"^node[0-9]+[.]\", TARGET.Machine) && member(\"el9\", {\"el8\", \"el9\"})\n\
        retry_until = ExitCode == 9\nsuccess_exit_code = 0\nwant_graceful_removal = true\nrequest_licences = 1\n+JobFlavour = \"espresso\"";
    for (site, user) in [("", all), (all, ""), ("", "nice_user = True"), ("accounting_group = a", "nice_user = true")] {
        let description = folders.describe(&parse(site), &parse(user), 1);
        for version in VERSIONS {
            dry_run(version, folders.root.path(), &description).unwrap();
        }
    }
    for command in HtcOpts::commands() {
        assert!(all.contains(&format!("{command} = ")) || command == "nice_user", "{command} is not in this test");
    }
}

/// The second lock: the operator's own lines hold whatever stood before them.
#[test]
fn files_and_programs_of_the_operator_override_all_options() {
    let folders = Folders::new();
    let none = HtcOpts::default();
    let plain = folders.describe(&none, &none, 2);
    let own = ["Cmd", "Iwd", "In", "Out", "Err", "TransferInput", "Environment", "LimitDirectoryAccess"];
    let wishes = ["WantDelayedUpdates", "WantIOProxy", "WantRemoteUpdates"];
    let mut attack = "MY.JobUniverse = 12\n".to_owned();
    for name in own.iter().chain(&files::UNDEFINED) {
        let _ = writeln!(attack, "MY.{name} = \"/etc/shadow\"");
    }
    for name in wishes {
        let _ = writeln!(attack, "+{} = true", name.to_uppercase());
    }
    for version in VERSIONS {
        let meant = dry_run(version, folders.root.path(), &plain).unwrap();
        // An attribute keeps the spelling in which it came first.
        let folded = |ads: &[Ad]| -> Vec<Ad> {
            let fold = |ad: &Ad| ad.iter().map(|(name, value)| (name.to_lowercase(), value.clone())).collect();
            ads.iter().map(fold).collect()
        };
        let attacked = dry_run(version, folders.root.path(), &format!("{attack}{plain}")).unwrap();
        assert_eq!(folded(&attacked), folded(&meant), "{version}");
        let value = |name: &str| {
            meant[0].iter().find(|(one, _)| one.eq_ignore_ascii_case(name)).map(|(_, value)| value.as_str())
        };
        for name in files::UNDEFINED {
            assert_eq!(value(name), Some("undefined"), "{version}: {name}");
        }
        assert_eq!(value("LimitDirectoryAccess"), Some("\"/nonexistent\""), "{version}");
        let requirements = value("Requirements").unwrap();
        assert!(!["Chroot", "HasTDP", "Encrypt"].iter().any(|word| requirements.contains(word)), "{requirements}");
        // Without the operator's lines it would be the user's that count.
        let ours = |line: &&str| line.starts_with("MY.DataReuseManifestSHA256");
        let bare: String = plain.lines().filter(|line| !ours(line)).map(|line| line.to_owned() + "\n").collect();
        assert_ne!(bare, plain);
        let ads = dry_run(version, folders.root.path(), &format!("+DataReuseManifestSHA256 = \"/x\"\n{bare}")).unwrap();
        assert_eq!(ads[0]["DataReuseManifestSHA256"], "\"/x\"", "{version}");
    }
}

#[test]
fn each_row_has_its_own_identity() {
    let folders = Folders::new();
    let none = HtcOpts::default();
    for version in VERSIONS {
        let ads = dry_run(version, folders.root.path(), &folders.describe(&none, &none, 3)).unwrap();
        assert_eq!(ads.len(), 3);
        for (row, ad) in ads.iter().enumerate() {
            let value = |name: &str| ad.get(name).or(ads[0].get(name)).map_or("nothing", String::as_str);
            assert_eq!(value("HTCJobIndex"), (row + 10).to_string(), "{version}: {ad:?}");
            assert!(value("Iwd").ends_with(&format!("/out{row}\"")), "{version}: {ad:?}");
            let item = ["-", "=JCh4KSwgInki", "-"][row];
            assert_eq!(value("Args"), format!("\"{} {item}\"", row + 10));
            assert_eq!((value("HTCJobUID"), value("HTCJobAttempt")), ("\"6a1c7f2e-0000-4000-8000-000000000001\"", "2"));
            assert_eq!((value("HTCOperator"), value("HTCNotAfter")), ("\"uid/ns/operator\"", "1800000000"));
            assert_eq!((value("JobBatchName"), value("Out"), value("Err")), ("\"default/test\"", "\"out\"", "\"err\""));
        }
    }
}

proptest! {
    #![proptest_config(Config { cases: 2_000, failure_persistence: None, ..Config::default() })]

    #[test]
    fn payload_conf_has_one_value_per_line(command in hostile_text(), image in hostile_text(), named in hostile_text(), name in hostile_text(), bind in hostile_text()) {
        let (command, image) = (PayloadCommand::parse(&command), Image::resolve(&image, &ImageMap::new()));
        let fallback = (PayloadCommand::parse("bash").unwrap(), Image::resolve("centos", &ImageMap::new()).unwrap());
        let (command, image) = (command.unwrap_or(fallback.0), image.unwrap_or(fallback.1));
        let (binds, program) = ([bind], Program::Script(command.clone()));
        let payload = Payload { name: &name, image: &image, image_name: &named, private: false,
 image_cache: None, program: &program, source: "exit", binds: &binds, volumes: &[], callback: None, env: &[], files: &[], fetched: &[], secret_files: &[], secret_env: &[], outputs: &[] };
        for payload in [payload, Payload { name: "a.b-c", ..payload }, Payload { name: "x", binds: &[], ..payload }] {
            let Ok(files) = sandbox_files(&payload) else { continue };
            let text = String::from_utf8(files[2].contents.clone()).unwrap();
            let mut meant = vec!["version 1".to_owned(), format!("name {}", payload.name), format!("image {}", image.argument())];
            let reference = |c: char| c.is_ascii_alphanumeric() || "-._/:@".contains(c);
            meant.extend(named.strip_prefix("docker://").into_iter().chain([&*named]).take(1).filter(|named| named.chars().all(reference)).map(|named| format!("named {named}")));
            meant.extend(payload.binds.iter().map(|bind| format!("bind {bind}")));
            meant.extend(command.words().map(|word| format!("command {word}")));
            meant.push("end".to_owned());
            prop_assert_eq!(text.split_terminator('\n').collect::<Vec<_>>(), meant);
            prop_assert!(text.bytes().all(|b| b == b'\n' || b == b' ' || b.is_ascii_graphic()));
            prop_assert!(!text.contains(['$', '`', '"', '\'', '\\', ';', '|', '&', '*', '?', '(', '<', '>', '#']));
        }
    }

    #[test]
    fn queue_row_stays_one_line(uid in hostile_text(), batch_name in hostile_text(), path in hostile_text(), operator in hostile_text(), item in hostile_text(), image in hostile_text()) {
        let none = HtcOpts::default();
        let path = format!("/{path}");
        let good = QueueItem { uid: "u", attempt: 1, index: 0, batch_name: "n/x", sandbox: "/s", output: "/o", item: None, image: "i" };
        let common = ClusterSettings { operator: "o", not_after: 1, site_defaults: &none, options: &none, callback: false, files: false, output_limit: None, node_faults: NodeFaultRules { retries: 0, pause: 30 }, mini_cluster: false, volumes: None, workers: None };
        let lines = submit_description(&common, &[good]).unwrap().lines().count();
        for (common, job) in [
            (common, QueueItem { uid: &uid, ..good }), (common, QueueItem { batch_name: &batch_name, ..good }), (common, QueueItem { sandbox: &path, ..good }),
            (common, QueueItem { output: &path, ..good }), (ClusterSettings { operator: &operator, ..common }, good),
            (common, QueueItem { item: Some(&item), ..good }), (common, QueueItem { image: &image, ..good }),
        ] {
            let Ok(text) = submit_description(&common, &[job]) else { continue };
            prop_assert_eq!(text.lines().count(), lines);
            let row = text.lines().nth_back(1).unwrap();
            let (row, last) = row.rsplit_once(',').unwrap();
            let (row, reported) = row.rsplit_once(',').unwrap();
            prop_assert_eq!(row, format!("{},1,0,{},{},{}", job.uid, job.batch_name, job.sandbox, job.output));
            prop_assert!(reported == "-" || reported == job.image.strip_prefix("docker://").unwrap_or(job.image));
            prop_assert!(reported.bytes().all(|b| b.is_ascii_alphanumeric() || b"-._/:@+=~".contains(&b)));
            let meant = last.strip_prefix('=').map(|text| String::from_utf8(STANDARD.decode(text).unwrap()).unwrap());
            prop_assert_eq!(meant.as_deref(), job.item);
            prop_assert!(last.bytes().all(|b| b.is_ascii_alphanumeric() || b"-+/=".contains(&b)));
            prop_assert!(row.bytes().all(|b| b.is_ascii_alphanumeric() || b"-._/:@+=~,".contains(&b)));
        }
    }
}
