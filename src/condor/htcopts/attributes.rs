//! Which attributes `+X = …` may set in a job's ad.
//!
//! A deny list made from HTCondor's own names (`condor_attributes.h` and the manual's list of job attributes, of 25.14):
//! whatever HTCondor reads or writes in a job's ad is refused, by families of prefixes, so that most of what later
//! versions add is covered too. What is left belongs to the site and the user (`JobFlavour`, `MaxRuntime`).

/// Longest attribute name accepted.
const MAX_NAME: usize = 64;

/// Attributes that are allowed although a family below has them: sites give them their meaning.
pub(super) const ALLOWED: &str = "\
    accountinggroup jobcategory jobflavor jobflavour jobtype";

/// First letters (lower case) of the attributes that HTCondor, or for `htc` this operator, uses itself.
pub(super) const RESERVED_FAMILIES: &str = "\
    _ acct action allowed append apptainer arg auth autocluster aws azure batch blockread \
    blockwrite broken buffer catalog ccb checkpoint chirp claim cloudlabel cluster cmd committed \
    commoninput completion compress concurrency condor container cred cron cumulative current \
    daemon dag deferral delegat diskprov diskusage docker dontencrypt drain ec2 encrypt entered \
    env epochad epochwrite err exec exit filere filetransfer flock gahp gce globaljob globus \
    grid hasos hold hook htc input iwd jar java job kill last leave machine manifest match \
    maxclaim maxhosts maxjob maxrequest maxrunning maxtransfer memoryprov memoryusage mpi \
    myproxy negotiat noop numckpts numholds numinput numjob numoutput numpids numrestarts \
    numshadow numsystem numvacates oauth ocu onexit orig output owner parallel periodic postarg \
    postcmd postenv postexit postjob prearg precmd preempt preenv prefer prejob preserve procid \
    provision publicclaim publicinput recentblock release remote remove request require rootdir \
    schedd scitoken send server shadow should singularity skip slot spool ssh stagein stageout \
    staging startd starter startlocal startscheduler startup stderr stdin stdout stream \
    submission submit success suspend target token tooldaemon totaljob totalsubmit totalsuspen \
    transfer transform trust uid uselog useoauth useparrot user vacate virtualmemory vm \
    wallclock when windows x509";

/// Attributes (lower case) that HTCondor uses itself and that no family has.
pub(super) const RESERVED: &str = "\
    absent accesspoint activationduration activationexecutionduration activationsetupduration \
    activationteardownduration addressv1 allremotehosts annexname arcapplication arcdatastaging \
    arcresources arcrte badputcausedbydraining badputcausedbypreemption bytesrecvd bytessent \
    cerequirements childclaimids clientid codclaims collectorhost command continue \
    continuereason coresize cpuinstructions cpusprovisioned cpususage cudaversion \
    curbmatchmaking dataflowjobskipped destination dropjobadinsandbox editedclusterattrs \
    effectiveflocklist emailattributes eraseoutputanderroronrestart exceptionhierarchy \
    exceptionname exceptiontype failurefiles fetchfiles filename filesystemdomain \
    firstjobmatchdate gid gidlist gpusmaxcapability gpusmincapability gpusminmemory \
    gpusminruntime gpusprovisioned imagesize in initialwaitduration interactive interactivejob \
    iowait isdaemoncore islocaluser isnoopjob isowner isqueuesuperuser istransfershadow \
    keepclaimidle kflops linuxcapabilities loadprofile loaduserprofile localfiles lognotes \
    minhosts mountunderscratch myaddress mycurrenttime myremoteusername mytype name \
    networkinputmb networkoutputmb newlycommittedtime nextjobstartdelay nextprocid niceuser node \
    nonessential notifyuser ntdomain oshomedir osuser otherjobremoverequirements out outsize pid \
    primaryunixgroup proportionalsetsizekb qdate rank realuid recentcancelslist recentdrainslist \
    requeuereason residentsetsize resumeoncompletion retry retryrequestmemory rscbytesrecvd \
    rscbytessent runasowner runinstanceid runningcodjob sandboxsize scratchdirfilecount shell \
    stacksize structurednotes subprocid terminationexitreason terminationpending timeout \
    timerremove timerremovesent toe uncommittedsuspensiontime universe visadaemontype \
    wantadrevaluate wantcheckpointsignal wantclaiming wantcompletionvisafromschedd wantcontainer \
    wantdelayedupdates wantdocker wantdockerimage wantexecutionvisafromstarter \
    wantftoncheckpoint wantgracefulremoval wantioproxy wantjobnetworking wantmatchdiagnostics \
    wantmatching wantnametag wantparallelscheduling wantparallelschedulinggroups \
    wantpslotpreemption wantremoteio wantremotesyscalls wantremoteupdates wantresad \
    wantsandboximage wantsif wantsuspendwithjob wanttransferpluginmethods";

/// Reserved attributes that have a submit command in the allow-list: first letters, and the command.
const BY_COMMAND: [(&str, &str); 22] = [
    ("acct", "write `accounting_group = …`"),
    ("allowedexecute", "write `allowed_execute_duration = …`"),
    ("allowedjob", "write `allowed_job_duration = …`"),
    ("concurrency", "write `concurrency_limits = …`"),
    ("gpusm", "write `gpus_minimum_memory = …` and the like"),
    ("jobmaxretries", "write `max_retries = …`"),
    ("jobmaxvacate", "write `job_max_vacate_time = …`"),
    ("jobprio", "write `priority = …`"),
    ("jobsuccessexit", "write `success_exit_code = …`"),
    ("keepclaimidle", "write `keep_claim_idle = …`"),
    ("maxjobretirement", "write `max_job_retirement_time = …`"),
    ("niceuser", "write `nice_user = …`"),
    ("onexit", "write `on_exit_hold = …` or `on_exit_remove = …`"),
    ("periodic", "write `periodic_hold = …`, `periodic_release = …`, `periodic_remove = …` or `periodic_vacate = …`"),
    ("rank", "write `rank = …`"),
    ("requestcpus", "write `request_cpus = …`"),
    ("requestdisk", "write `request_disk = …`"),
    ("requestgpus", "write `request_gpus = …`"),
    ("requestmemory", "write `request_memory = …`"),
    ("requiregpus", "write `require_gpus = …`"),
    ("requirements", "write `requirements = …`"),
    ("wantgracefulremoval", "write `want_graceful_removal = …`"),
];

/// True for a plain attribute name.
pub(super) fn is_name(name: &str) -> bool {
    name.len() <= MAX_NAME
        && name.starts_with(|c: char| c.is_ascii_alphabetic())
        && name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_')
}

/// Says what to do instead when the attribute is reserved.
pub(super) fn reserved(name: &str) -> Option<&'static str> {
    let name = name.to_ascii_lowercase();
    if has(ALLOWED, &name) {
        return None;
    }
    if name.starts_with("htc") {
        return Some("attributes that begin with HTC are the operator's own; choose another name");
    }
    let is_reserved =
        has(RESERVED, &name) || RESERVED_FAMILIES.split_ascii_whitespace().any(|family| name.starts_with(family));
    let command = BY_COMMAND.iter().find(|(first, _)| name.starts_with(first)).map(|(_, instead)| *instead);
    is_reserved
        .then(|| command.unwrap_or("HTCondor uses this name, or names that begin so, itself; choose another name"))
}

fn has(list: &str, name: &str) -> bool {
    list.split_ascii_whitespace().any(|listed| listed == name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_htcondor_uses_is_reserved_in_any_case() {
        let names = "Owner USER OsUser NTDomain ClusterId ProcId Cmd Args Arguments Env Environment Iwd In Out Err UserLog \
            JobStatus LeaveJobInQueue StageInStart StageInFinish StageOutStart StageOutFinish TransferInput TransferOutput \
            TransferOutputRemaps SpooledOutputFiles HoldReason HoldReasonCode JobBatchName JobUniverse x509userproxy DAGManJobId \
            AcctGroup AcctGroupUser OAuthServicesNeeded ScitokensFile SendCredential PreCmd PostCmd ToolDaemonCmd Requirements Rank \
            RequestedChroot ContainerImage SingularityImage DockerImage WantContainer HookKeyword OutputDestination PeriodicRemove \
            ExitCode CompletionDate EnteredCurrentStatus QDate TransformBody_X MyType TargetType Shell NumJobStarts JobSetName \
            CommonInputFiles ManifestDir CheckpointDestination LocalFiles PublicInputFiles EncryptInputFiles _condor_x SubmitEventNotes";
        for name in names.split_ascii_whitespace() {
            for spelled in [name.to_owned(), name.to_uppercase(), name.to_lowercase()] {
                assert!(reserved(&spelled).is_some(), "{spelled} is free");
            }
        }
        for name in ["HTC", "HTCJobUID", "htcondor", "Htc_x"] {
            assert!(reserved(name).is_some_and(|instead| instead.contains("operator")), "{name}");
        }
    }

    #[test]
    fn what_sites_and_users_need_is_free() {
        let names = "JobFlavour MaxRuntime AccountingGroup ProjectName DESIRED_Sites WantFlocking RunNumber NumEvents BigMemJob \
            TotalEvents Dataset Stage MyTag xcount WishedAcctGroup";
        for name in names.split_ascii_whitespace() {
            assert_eq!(reserved(name), None, "{name}");
            assert!(is_name(name));
        }
    }

    #[test]
    fn a_reserved_attribute_with_a_command_names_it() {
        for (name, command) in [
            ("RequestMemory", "request_memory"),
            ("OnExitHold", "on_exit_hold"),
            ("JobPrio", "priority"),
            ("Rank", "rank"),
        ] {
            assert!(reserved(name).unwrap().contains(command), "{name}");
        }
    }
}
