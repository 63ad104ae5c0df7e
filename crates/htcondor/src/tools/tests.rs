use htc_confine::Confinement;

use super::*;

fn tools() -> Tools {
    let limit = Duration::from_secs(20);
    let off = ConfinementSettings { wanted: Confinement::Off, reads: &[], protected: &[] };
    Tools::new(None, off, limit, limit, limit, Metrics::default())
}

fn call<'a>(tool: &'static str, arguments: &[&'a str], limit: Duration) -> ToolInvocation<'a> {
    let (arguments, touches) = (arguments.to_vec(), FileAccess::default());
    let (input, most_bytes) = (Vec::new(), MAX_ACTION_OUTPUT);
    ToolInvocation {
        tool,
        arguments,
        input,
        limit,
        max_output: most_bytes,
        outlives_operator: false,
        inherited_lock: None,
        access: touches,
    }
}

#[tokio::test]
async fn tool_has_only_its_own_environment_and_input() {
    let tools = Tools { environment: vec![("PATH".into(), "/usr/bin:/bin".into())], ..tools() };
    let said = tools
        .call(ToolInvocation {
            input: b"in".to_vec(),
            ..call("sh", &["-c", "cat; env | cut -d= -f1 | sort | tr '\\n' ' '; echo oops >&2; exit 3"], tools.limit)
        })
        .await
        .unwrap();
    assert_eq!(said.status, Some(3));
    assert_eq!(said.stderr, "oops");
    let text = String::from_utf8(said.stdout).unwrap();
    assert!(text.starts_with("in"), "{text}");
    assert!(!text.contains("HOME"), "{text}");
}

#[tokio::test]
async fn each_identity_has_its_own_credentials() {
    let tools = tools();
    let other = tools.for_other_credentials();
    tools.set_credentials(vec![("KRB5CCNAME", "FILE:/mine".to_owned())], PathBuf::from("/"));
    let sees = async |tools: Tools| {
        let said = tools.run("sh", &["-c", "echo ${KRB5CCNAME-none}"]).await.unwrap();
        String::from_utf8(said.stdout).unwrap().trim().to_owned()
    };
    let without = std::env::var("KRB5CCNAME").unwrap_or_else(|_| "none".to_owned());
    assert_eq!(sees(tools.clone()).await, "FILE:/mine");
    assert_eq!(sees(other).await, without);
}

#[tokio::test]
async fn process_group_is_killed_at_the_time_limit() {
    let script = "sleep 1000 & echo $!; exec sleep 1000";
    let error = tools().call(call("sh", &["-c", script], Duration::from_millis(300))).await.unwrap_err();
    assert!(matches!(error, ToolError::TimedOut { dead: true, .. }), "{error:?}");
}

#[tokio::test]
async fn dropped_call_kills_its_process() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("pid");
    let script = format!("echo $$ > {}; exec sleep 1000", file.display());
    let tools = tools();
    let arguments = ["-c", script.as_str()];
    let running = tools.run("sh", &arguments);
    assert!(tokio::time::timeout(Duration::from_millis(500), running).await.is_err());
    let pid: i32 = std::fs::read_to_string(file).unwrap().trim().parse().unwrap();
    let pid = Pid::from_raw(pid).unwrap();
    let deadline = std::time::Instant::now() + Duration::from_secs(10);
    while rustix::process::test_kill_process(pid).is_ok() && std::time::Instant::now() < deadline {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let state = std::fs::read_to_string(format!("/proc/{}/stat", pid.as_raw_nonzero())).unwrap_or_default();
    assert!(state.is_empty() || state.contains(") Z "), "still there: {state}");
}

#[test]
fn launcher_is_called_by_its_absolute_path() {
    let tools = tools();
    assert!(tools.timeout.starts_with('/') && tools.setpriv.starts_with('/'), "{tools:?}");
    assert_eq!(locate("/nowhere:/", "no such program"), "no such program");
}

#[tokio::test]
async fn query_has_a_cost_and_a_time_limit() {
    let (tools, limit) = (tools(), Duration::from_secs(20));
    let ask = async |script| tools.ask("sh", &["-c", script], limit, MAX_ACTION_OUTPUT).await.unwrap().cost;
    let asleep = ask("sleep 0.3").await;
    assert!(
        asleep.remote_wait >= Duration::from_millis(250) && asleep.local_cpu < Duration::from_millis(150),
        "{asleep:?}"
    );
    let busy = ask("i=0; while [ $i -lt 400000 ]; do i=$((i + 1)); done").await;
    assert!(busy.local_cpu > Duration::from_millis(50) && busy.remote_wait < busy.local_cpu / 2, "{busy:?}");
    let error = tools.ask("sleep", &["1000"], Duration::from_millis(200), MAX_ACTION_OUTPUT).await.unwrap_err();
    assert!(matches!(error, ToolError::TimedOut { dead: true, .. }), "{error:?}");
}

#[tokio::test]
async fn missing_tool_is_reported_as_missing() {
    let error = tools().run("condor_no_such_tool", &[]).await.unwrap_err();
    assert!(matches!(error, ToolError::NotStarted { missing: true, .. }), "{error:?}");
    assert!(error.to_string().contains("in the operator's PATH"), "{error}");
}

#[tokio::test]
async fn failed_confinement_is_not_reported_as_missing_tool() {
    let error = tools().run("sh", &["-c", "echo cannot be confined >&2; exit 126"]).await.unwrap_err();
    assert_eq!(error.to_string(), "cannot start sh: cannot be confined");
}

#[tokio::test]
async fn kill_by_time_limit_differs_from_other_signals() {
    let (tools, limit) = (tools(), Duration::from_secs(20));
    for (signal, number, cause) in [("XFSZ", 25, "a file larger"), ("ABRT", 6, "memory"), ("SEGV", 11, "memory")] {
        let script = format!("ulimit -c 0; kill -{signal} $$");
        let arguments = ["-c", script.as_str()];
        for error in [tools.run("sh", &arguments).await, tools.ask("sh", &arguments, limit, MAX_ACTION_OUTPUT).await] {
            let error = error.unwrap_err();
            assert!(matches!(error, ToolError::Killed { signal, .. } if signal == number), "{error:?}");
            assert!(error.to_string().contains(cause), "{error}");
        }
    }
    for script in ["kill -KILL $$", "exit 137"] {
        let error = tools.run("sh", &["-c", script]).await.unwrap_err();
        assert!(matches!(error, ToolError::TimedOut { .. }), "{error:?}");
    }
    assert!(tools.run("sh", &["-c", "exit 255"]).await.is_ok());
}

#[tokio::test]
async fn output_is_limited_to_the_bytes_of_the_query() {
    let (tools, limit) = (tools(), Duration::from_secs(20));
    let ask = async |bytes: &str| tools.ask("head", &["-c", bytes, "/dev/zero"], limit, 4096).await;
    assert_eq!(ask("4096").await.unwrap().stdout.len(), 4096);
    let error = ask("4097").await.unwrap_err();
    assert!(matches!(error, ToolError::TooMuch { most: 4096, dead: true, .. }), "{error:?}");
}

#[tokio::test]
async fn output_of_all_tools_fits_the_memory_limit_of_the_pod() {
    let deployment = std::fs::read_to_string("../../deploy/base/deployment.yaml").unwrap();
    let limit = deployment.split("limits:\n              memory: ").nth(1).unwrap().lines().next().unwrap();
    let limit: usize = limit.strip_suffix("Gi").unwrap().parse().unwrap();
    assert!(KEPT <= limit * 1024 * 1024 * 1024 / 4, "the ledger, caches and answers have the rest");
    let (tools, limit) = (tools(), Duration::from_secs(20));
    // Tools of another pool share the budget.
    let other = tools.for_pool("localhost", Metrics::default());
    let taken = tools.kept.acquire_many(units(KEPT)).await.unwrap();
    let waits = tokio::time::timeout(Duration::from_millis(100), other.ask("true", &[], limit, 1)).await;
    assert!(waits.is_err(), "{waits:?}");
    let (answer, ()) = tokio::join!(other.ask("true", &[], limit, 1), async { drop(taken) });
    assert_eq!(answer.unwrap().status, Some(0));
}
