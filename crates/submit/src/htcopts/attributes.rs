//! Attributes that `+X = …` may set in a job's ad.
//!
//! HTCondor looks up attributes by name in hundreds of places, and some make the tools in the operator read a file
//! (`DataReuseManifestSHA256` does). No list of those names is ever complete. So this is a list of allowed attributes:
//! names that sites' documentation tells users to set, and that HTCondor's source does not read. An administrator can
//! add more.

/// Maximum length of an attribute's name.
const MAX_NAME: usize = 64;

/// Attributes that users of every site may set, from the policies of Bonn, CERN, CHTC, CMS, DESY, Fermilab, KIT, the
/// OSPool and others.
pub(super) const USUAL: [&str; 24] = [
    "AccountingGroup",
    "BigMemJob",
    "CephFS_IO",
    "DESIRED_Sites",
    "FERMIHTC_AutoRelease",
    "FERMIHTC_GraceLifetime",
    "FERMIHTC_GraceMemory",
    "GPUJobLength",
    "JobCategory",
    "JobDurationCategory",
    "JobFlavor",
    "JobFlavour",
    "JobType",
    "MaxRuntime",
    "MaxRuntimeHours",
    "MaxWallTimeMins",
    "MyProject",
    "ProjectName",
    "RemoteJob",
    "UNDESIRED_Sites",
    "WantFlocking",
    "WantGPULab",
    "WantGlideIn",
    "is_resumable",
];

/// Usual attributes with a number as value. A text does not compare like a number.
const NUMBERS: [&str; 5] =
    ["FERMIHTC_GraceLifetime", "FERMIHTC_GraceMemory", "MaxRuntime", "MaxRuntimeHours", "MaxWallTimeMins"];

/// Usual attributes with text as value.
const TEXTS: [&str; 10] = [
    "CephFS_IO",
    "DESIRED_Sites",
    "GPUJobLength",
    "JobCategory",
    "JobDurationCategory",
    "JobFlavor",
    "JobFlavour",
    "MyProject",
    "ProjectName",
    "UNDESIRED_Sites",
];

/// Attributes by which users of some sites choose the container that the site starts for a job. `job.sh` starts the
/// container of `spec.script.image` itself, and finds no container runtime inside the site's container.
const CONTAINERS: [&str; 3] = ["ContainerOS", "REQUIRED_OS", "WantOS"];

/// Kind of an attribute's value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum AttributeKind {
    /// Text in double quotes.
    Text,
    /// A number.
    Number,
    /// Any expression.
    Expression,
}

/// Returns the kind of an attribute's value. Ignores case.
pub(super) fn kind(name: &str) -> AttributeKind {
    let is_in = |names: &[&str]| names.iter().any(|listed| listed.eq_ignore_ascii_case(name));
    if is_in(&NUMBERS) {
        AttributeKind::Number
    } else if is_in(&TEXTS) {
        AttributeKind::Text
    } else {
        AttributeKind::Expression
    }
}

/// Returns what to write instead of an attribute that neither HTCondor nor the operator uses, but that must not be set
/// here.
pub(super) fn instead(name: &str) -> Option<&'static str> {
    CONTAINERS.iter().any(|listed| listed.eq_ignore_ascii_case(name)).then_some(
        "the site would start a container of its own, and spec.script.image cannot be started inside of it; choose the \
         operating system with spec.script.image",
    )
}

/// The attributes that `htcopts` may set: the usual ones, and those that the site's administrator allows.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Attributes {
    further: Vec<AttributeName>,
    /// Whether all attributes are allowed that HTCondor and the operator do not use themselves.
    any: bool,
}

/// An attribute that a site may allow beyond the usual ones. HTCondor and the operator do not use it themselves.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AttributeName(String);

/// Reason why a site cannot allow an attribute.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum AttributeError {
    /// The text is no attribute name.
    #[error("{0:?} is not an attribute name: begin with a letter, and use at most {MAX_NAME} letters, digits and `_`")]
    Name(String),
    /// A name that users must not set.
    #[error("{name} cannot be allowed: {reason}")]
    Reserved {
        name: String,
        /// What uses it, or which submit command sets it.
        reason: &'static str,
    },
}

impl Attributes {
    /// Allows the usual attributes and `further` ones.
    #[must_use]
    pub fn with(further: impl IntoIterator<Item = AttributeName>) -> Self {
        Self { further: further.into_iter().collect(), any: false }
    }

    /// Allows all attributes that HTCondor and the operator do not use themselves, for the site's own settings.
    #[must_use]
    pub const fn of_the_site() -> Self {
        Self { further: Vec::new(), any: true }
    }

    /// Returns the names of the attributes that users of every site may set, sorted.
    pub fn usual() -> impl Iterator<Item = &'static str> {
        USUAL.into_iter()
    }

    /// Returns whether the attribute may be set. Ignores case.
    pub(super) fn allows(&self, name: &str) -> bool {
        self.names().any(|allowed| allowed.eq_ignore_ascii_case(name)) || (self.any && may_be_allowed(name).is_ok())
    }

    /// Lists the allowed names for a message.
    pub(super) fn listed(&self) -> String {
        self.names().collect::<Vec<_>>().join(", ")
    }

    fn names(&self) -> impl Iterator<Item = &str> {
        USUAL.into_iter().chain(self.further.iter().map(|name| name.0.as_str()))
    }
}

impl std::str::FromStr for AttributeName {
    type Err = AttributeError;

    fn from_str(name: &str) -> Result<Self, AttributeError> {
        if !is_name(name) {
            return Err(AttributeError::Name(name.to_owned()));
        }
        match may_be_allowed(name) {
            Err(reason) => Err(AttributeError::Reserved { name: name.to_owned(), reason }),
            Ok(()) => Ok(Self(name.to_owned())),
        }
    }
}

/// Prefixes (lower case) of the attributes that HTCondor, or for `htc` this operator, uses itself. Together with
/// [`RESERVED`] it is a second protection: no setting can allow what HTCondor's headers, manual and source name in a
/// job's ad (25.14).
const RESERVED_FAMILIES: &str = "\
    _ acct action allowed append apptainer arg auth autocluster aws azure batch blockread \
    blockwrite broken buffer catalog ccb checkpoint chirp claim cloudlabel cluster cmd committed \
    commoncatalog commoninput completion compress concurrency condor container cred cron cumulative current \
    daemon dag datareuse deferral delegat diskprov diskusage docker dontencrypt drain ec2 encrypt entered \
    env epochad epochwrite err exec exit extendedsubmit filere filetransfer flock gahp gce globaljob globus \
    grid hasos hold hook htc initialjob input iwd jar java job kill last leave limitdirectory localcredd machine managed manifest match \
    maxclaim maxhosts maxjob maxrequest maxrunning maxtransfer memoryprov memoryusage mpi \
    myproxy negotiat noop numckpts numholds numinput numjob numoutput numpids numrestarts \
    numshadow numsystem numvacates oauth ocu onexit orig output owner parallel periodic postarg \
    postcmd postenv postexit postjob prearg precmd preempt preenv prefer prejob preserve procid \
    provision publicclaim publicinput recentblock release remote remove request require rootdir \
    routedby schedd scitoken send server shadow should singularity skip slot spool ssh stagein stageout \
    staging startd starter startlocal startscheduler startup stderr stdin stdout stream \
    submission submit success suspend target token tooldaemon totaljob totalsubmit totalsuspen \
    transfer transform trust uid uselog useoauth useparrot user vacate virtualmemory vm \
    wallclock want_ when windows x509";

/// Attributes (lower case) that HTCondor uses itself and that have none of the prefixes.
const RESERVED: &str = "\
    absent accesspoint activationduration activationexecutionduration activationsetupduration \
    activationteardownduration addressv1 allremotehosts annexname arcapplication arcdatastaging \
    arcresources arcrte assignedgpus availablegpus badputcausedbydraining badputcausedbypreemption bytesrecvd bytessent \
    cerequirements checksum checksumtype childclaimids clientid codclaims collectorhost command continue \
    continuereason corefile coresize cpuinstructions cpusprovisioned cpususage cudaversion \
    curbmatchmaking cwd dataflowjobskipped destination dropjobadinsandbox editedclusterattrs \
    effectiveflocklist emailattributes eraseoutputanderroronrestart exceptionhierarchy \
    exceptionname exceptiontype exportdir failurefiles fetchfiles filename filesystemdomain \
    firstjobmatchdate gid gidlist gpusmaxcapability gpusmincapability gpusminmemory \
    gpusminruntime gpusprovisioned imagesize in initialwaitduration interactive interactivejob \
    iowait isdaemoncore islocaluser isnoopjob isowner isqueuesuperuser istransfershadow \
    keepclaimidle keypath kflops linuxcapabilities loadprofile loaduserprofile localfilename localfiles log lognotes \
    minhosts mountunderscratch myaddress mycurrenttime myremoteusername mytype name namedchroot \
    networkinputmb networkoutputmb newlycommittedtime newspooldir nextjobstartdelay nextprocid niceuser node \
    nonessential notifyuser ntdomain oshomedir osuser otherjobremoverequirements out outsize path pid \
    primaryunixgroup proportionalsetsizekb publickeyfile qdate rank realuid recentcancelslist recentdrainslist \
    requeuereason residentsetsize resumeoncompletion retry retryrequestmemory rscbytesrecvd \
    rscbytessent runasowner runinstanceid runningcodjob sandboxsize scratchdirfilecount secret shell \
    stacksize structurednotes subprocid terminationexitreason terminationpending timeout \
    timerremove timerremovesent toe uncommittedsuspensiontime universe uploadfrom uploadto url visadaemontype \
    wantadrevaluate wantcheckpointsignal wantclaiming wantcompletionvisafromschedd wantcontainer \
    wantdelayedupdates wantdocker wantdockerimage wantexecutionvisafromstarter \
    wantftoncheckpoint wantgracefulremoval wantioproxy wantjobnetworking wantmatchdiagnostics \
    wantmatching wantnametag wantparallelscheduling wantparallelschedulinggroups \
    wantpslotpreemption wantremoteio wantremotesyscalls wantremoteupdates wantresad \
    wantsandboximage wantsif wantsuspendwithjob wanttransferpluginmethods";

/// Prefixes of reserved attributes for which there is an allowed submit command, and that command.
const BY_COMMAND: [(&str, &str); 23] = [
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
    ("request", "write the submit command: `request_runtime = …` for `+RequestRuntime`, and so on"),
    ("requiregpus", "write `require_gpus = …`"),
    ("requirements", "write `requirements = …`"),
    ("wantgracefulremoval", "write `want_graceful_removal = …`"),
];

/// Returns whether the text is a plain attribute name.
pub(super) fn is_name(name: &str) -> bool {
    name.len() <= MAX_NAME
        && name.starts_with(|c: char| c.is_ascii_alphabetic())
        && name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_')
}

/// Checks that a site may allow the attribute: it is in the lists of known ones, or HTCondor and the operator do not
/// use it.
fn may_be_allowed(name: &str) -> Result<(), &'static str> {
    match reserved(name) {
        Some(reason) if instead(name).is_none() && !Attributes::default().allows(name) => Err(reason),
        _ => Ok(()),
    }
}

/// Returns what to do instead, if HTCondor or the operator uses the attribute itself.
pub(super) fn reserved(name: &str) -> Option<&'static str> {
    let name = name.to_ascii_lowercase();
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

    const PAGE: &str = include_str!("../../../../docs/htcopts.md");

    #[test]
    fn attributes_of_htcondor_are_reserved_case_insensitively() {
        let names = "Owner USER OsUser NTDomain ClusterId ProcId Cmd Args Arguments Env Environment Iwd In Out Err UserLog \
            JobStatus LeaveJobInQueue StageInStart StageInFinish StageOutStart StageOutFinish TransferInput TransferOutput \
            TransferOutputRemaps SpooledOutputFiles HoldReason HoldReasonCode JobBatchName JobUniverse x509userproxy DAGManJobId \
            AcctGroup AcctGroupUser OAuthServicesNeeded ScitokensFile SendCredential PreCmd PostCmd ToolDaemonCmd Requirements Rank \
            RequestedChroot ContainerImage SingularityImage DockerImage WantContainer HookKeyword OutputDestination PeriodicRemove \
            ExitCode CompletionDate EnteredCurrentStatus QDate TransformBody_X MyType TargetType Shell NumJobStarts JobSetName \
            CommonInputFiles LimitDirectoryAccess LocalCredd RoutedBy Managed InitialJobStatus Log ManifestDir CheckpointDestination LocalFiles PublicInputFiles EncryptInputFiles DataReuseManifestSHA256 _condor_x SubmitEventNotes";
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
    fn attribute_is_allowed_by_the_list_or_the_site() {
        let site = Attributes::with(["RunNumber", "xcount"].map(|name| name.parse().unwrap()));
        for name in ["JobFlavour", "maxruntime", "DESIRED_SITES", "RunNumber", "XCOUNT"] {
            assert!(site.allows(name), "{name}");
        }
        for name in ["RunNumber", "DataReuseManifestSHA256", "NumEvents", "X", "Owner", "HTCJobUID"] {
            assert!(!Attributes::default().allows(name), "{name}");
        }
        assert!(
            site.listed().starts_with("AccountingGroup, BigMemJob, ") && site.listed().ends_with(", RunNumber, xcount")
        );
    }

    #[test]
    fn site_settings_may_set_any_unreserved_attribute() {
        let site = Attributes::of_the_site();
        for name in ["JobFlavour", "RunNumber", "X"] {
            assert!(site.allows(name), "{name}");
        }
        for name in ["DataReuseManifestSHA256", "Iwd", "Owner", "HTCJobUID"] {
            assert!(!site.allows(name), "{name}");
        }
    }

    #[test]
    fn site_cannot_allow_a_reserved_attribute() {
        for name in ["RunNumber", "Dataset", "WishedAcctGroup", "jobflavour", "AccountingGroup"] {
            assert!(name.parse::<AttributeName>().is_ok(), "{name}");
        }
        let cases = [
            ("", "is not an attribute name"),
            ("A.B", "is not an attribute name"),
            ("1x", "is not an attribute name"),
            ("DataReuseManifestSHA256", "HTCondor uses this name"),
            ("datareuse_x", "HTCondor uses this name"),
            ("Owner", "HTCondor uses this name"),
            ("Iwd", "HTCondor uses this name"),
            ("SUBMIT_Iwd", "HTCondor uses this name"),
            ("RequestMemory", "request_memory"),
            ("HTCJobUID", "operator"),
        ];
        for (name, message) in cases {
            let error = name.parse::<AttributeName>().unwrap_err().to_string();
            assert!(error.contains(message), "{error}");
        }
    }

    #[test]
    fn documentation_lists_the_allowed_attributes() {
        let list =
            PAGE.split("<!-- attributes -->").nth(1).unwrap().split("<!-- end of attributes -->").next().unwrap();
        let documented: Vec<_> = list.split('`').skip(1).step_by(2).collect();
        assert_eq!(documented, USUAL);
        assert!(USUAL.is_sorted());
    }

    #[test]
    fn reserved_attribute_names_its_submit_command() {
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
