//! HTCondor's configuration for the pods of a managed pool.
//!
//! Comments at the settings name what was measured on both versions of HTCondor. What differs from pod to pod comes
//! from the pod's environment.

use std::fmt::Write as _;

use htc_submit::description::{
    IMAGE_ATTRIBUTE, MINI_CLUSTER_ATTRIBUTE, NO_OWNER, VOLUMES_ATTRIBUTE, WORKER_MINI_CLUSTER_ATTRIBUTE,
    WORKER_VOLUMES_ATTRIBUTE,
};
use htcondor::startds::PAYLOADS_ATTRIBUTE;

use super::names::{OPERATOR, PORT, PoolNames, Role};
use super::paths::{LOCAL, RELEASE, SPOOL};
use super::{payload, shadow};
use crate::backends::condor::credentials::signing::{KEY_NAME, NAMESPACE_USER_PREFIX};

/// Interval in seconds between the daemons' updates to the collector. After a restart of the collector all daemons have
/// sent one within two intervals.
pub const UPDATE_INTERVAL: u32 = 20;
/// Interval between the negotiator's cycles, in seconds.
pub const NEGOTIATOR_INTERVAL: u32 = 20;
/// MiB of a worker's memory for HTCondor's daemons. Its jobs do not get them.
pub const RESERVE_MIB: u64 = 128;
/// Attribute of slots: `metadata.uid` of the worker's pod.
pub const POD_UID: &str = "HTCPodUID";
/// Attribute of slots: the image of the worker's container. `job.sh` runs the payload in it, and in no container of its
/// own.
pub const WORKER_IMAGE: &str = "HTCWorkerImage";

/// Attribute of slots: the only HTCondor user whose jobs start there, or [`NO_OWNER`] for all users.
const WORKER_OWNER: &str = "HTCWorkerOwner";

/// Configuration of the daemons of all roles.
const COMMON: &str = r"LOCAL_CONFIG_FILE =
LOCAL_CONFIG_DIR =
BIN = $(RELEASE_DIR)/bin
SBIN = $(RELEASE_DIR)/sbin
LIB = $(RELEASE_DIR)/lib/condor
LIBEXEC = $(RELEASE_DIR)/libexec/condor
SHARE = $(RELEASE_DIR)/share/condor
ETC = $(LOCAL_DIR)
RUN = $(LOCAL_DIR)/run
LOG = $(LOCAL_DIR)/log
LOCK = $(LOCAL_DIR)/lock
EXECUTE = $(LOCAL_DIR)/execute
CRED_STORE_DIR = $(LOCAL_DIR)/cred
SEC_PASSWORD_DIRECTORY = $(LOCAL_DIR)/passwords.d
SEC_TOKEN_SYSTEM_DIRECTORY = $(LOCAL_DIR)/tokens.d
SEC_TOKEN_DIRECTORY = $(LOCAL_DIR)/tokens.d
USE_SHARED_PORT = true
DAEMON_SOCKET_DIR = auto
NETWORK_INTERFACE = $ENV(POD_IP)
NETWORK_HOSTNAME = $ENV(POD_NAME).$(UID_DOMAIN)
BIND_ALL_INTERFACES = false
FILESYSTEM_DOMAIN = $(NETWORK_HOSTNAME)
# Tokens, and nothing else. A family session would do for the daemons of one pod among themselves; 23.9 takes those of other pods on
# loopback for its family, too, and then never reaches the collector.
SEC_USE_FAMILY_SESSION = false
SEC_DEFAULT_AUTHENTICATION = REQUIRED
SEC_DEFAULT_AUTHENTICATION_METHODS = IDTOKENS
SEC_DEFAULT_ENCRYPTION = REQUIRED
SEC_DEFAULT_INTEGRITY = REQUIRED
SEC_CLIENT_AUTHENTICATION = REQUIRED
SEC_CLIENT_AUTHENTICATION_METHODS = IDTOKENS
ALLOW_READ = *@$(UID_DOMAIN)
ALLOW_DAEMON = $(MYSELF)
ALLOW_ADMINISTRATOR = $(MYSELF)
ALLOW_WRITE =
ALLOW_CONFIG =
ALLOW_OWNER =
ALLOW_ADVERTISE_MASTER =
ALLOW_ADVERTISE_SCHEDD =
ALLOW_ADVERTISE_STARTD =
ENABLE_KERNEL_TUNING = false
# A peer of a shadow or a starter may name a URL, and a plugin then reads it: also file:// on the host of the one who obeys.
ENABLE_URL_TRANSFERS = false
ENABLE_MULTIFILE_TRANSFER_PLUGINS = false
FILETRANSFER_PLUGINS =
SIGN_S3_URLS = false
ENABLE_HTTP_PUBLIC_FILES = false
# What no job of this operator uses: remote calls to the shadow, shells beside a job, credentials that HTCondor keeps for users.
ENABLE_CHIRP = false
ENABLE_SSH_TO_JOB = false
SEC_CREDENTIAL_DIRECTORY =
SEC_CREDENTIAL_DIRECTORY_KRB =
SEC_CREDENTIAL_DIRECTORY_OAUTH =
NEGOTIATOR_CYCLE_DELAY = 5
MAIL = /bin/true
SENDMAIL = /bin/true
CONDOR_ADMIN =
";

const CENTRAL_MANAGER: &str = r"DAEMON_LIST = MASTER COLLECTOR NEGOTIATOR
MASTER_NAME = $(MYSELF)
NEGOTIATOR_NAME = $(MYSELF)
COLLECTOR_NAME = $(UID_DOMAIN)
";

/// A schedd that stops leaves its jobs running. The next one finds them again within their lease.
///
/// A payload may replace its starter, and the shadow that serves it has the files of this pod. `LIMIT_DIRECTORY_ACCESS`
/// restricts a shadow's file transfers to the spool folder of its job, which the shadow adds itself
/// (`allow_shadow_access` of HTCondor's `limit_directory_access.cpp`). Symbolic links are followed before the check.
/// Hard links within the spool are not seen by it: for these there is [`shadow`].
///
/// Jobs of the local and the scheduler universe are processes of this pod. 23.9 lets a job's owner change `JobUniverse`
/// afterwards.
const SCHEDD: &str = r#"DAEMON_LIST = MASTER SCHEDD
MASTER_NAME = $(MYSELF)
SHUTDOWN_GRACEFUL_TIMEOUT = 40
LIMIT_DIRECTORY_ACCESS = /nonexistent
START_LOCAL_UNIVERSE = false
START_SCHEDULER_UNIVERSE = false
IMMUTABLE_JOB_ATTRS = JobUniverse
SUBMIT_REQUIREMENT_NAMES = Universe Owner
SUBMIT_REQUIREMENT_Universe = JobUniverse == 5
SUBMIT_REQUIREMENT_Universe_REASON = "this pool runs jobs of the vanilla universe only"
SUBMIT_REQUIREMENT_Owner_REASON = strcat("this pool runs jobs of HTCJobs only, and none of ", Owner)
"#;

/// One partitionable slot.
///
/// A drain never ends a job. Kubernetes sends SIGTERM to a pod that was deleted: this ends the jobs within the pod's
/// grace period, and they run again elsewhere at once.
const WORKER: &str = r"DAEMON_LIST = MASTER STARTD
MASTER_NAME = $ENV(POD_NAME)@$(UID_DOMAIN)
STARTD_NAME = $ENV(POD_NAME)@$(UID_DOMAIN)
NUM_CPUS = $ENV(WORKER_CPUS)
DISK = $ENV(WORKER_DISK_KIB)
NUM_SLOTS = 1
NUM_SLOTS_TYPE_1 = 1
SLOT_TYPE_1 = 100%
SLOT_TYPE_1_PARTITIONABLE = true
SUSPEND = false
PREEMPT = false
KILL = false
WANT_SUSPEND = false
WANT_VACATE = false
RUNBENCHMARKS = 0
MaxJobRetirementTime = 31536000
MachineMaxVacateTime = 30
SHUTDOWN_GRACEFUL_TIMEOUT = 60
SHUTDOWN_FAST_TIMEOUT = 30
# The startd ends when it has been drained; the pod ends with the master.
MASTER.DAEMON_SHUTDOWN = STARTD_StartTime =?= 0 && time() - DaemonStartTime > 60
# Jobs find what the image has set.
JOB_INHERITS_STARTER_ENVIRONMENT = true
";

/// Returns the file `condor_config` of a role.
#[must_use]
pub fn condor_config(names: &PoolNames, role: Role) -> String {
    let mut text = String::new();
    let mut set = |name: &str, value: &dyn std::fmt::Display| {
        let _ = writeln!(text, "{name} = {value}");
    };
    set("RELEASE_DIR", &format!("{RELEASE}/usr"));
    set("LOCAL_DIR", &LOCAL);
    set("UID_DOMAIN", &names.domain());
    set("TRUST_DOMAIN", &names.trust_domain());
    set("DEFAULT_DOMAIN_NAME", &names.domain());
    set("CONDOR_HOST", &names.collector());
    set("COLLECTOR_HOST", &format!("$(CONDOR_HOST):{PORT}"));
    set("SHARED_PORT_PORT", &PORT);
    set("SEC_TOKEN_ISSUER_KEY", &KEY_NAME);
    // Workers of different tenants have different identities for the collector.
    set("MYSELF", &if role == Role::Worker { "$ENV(WORKER_IDENTITY)".to_owned() } else { names.identity(role) });
    let [central_manager, schedd] = [Role::CentralManager, Role::Schedd].map(|role| names.identity(role));
    // The second identity is that of workers from before each tenant had one: they advertise until their jobs have
    // ended. A job that requires an identity runs on none of them. Their tokens do not expire, but are signed with the
    // first key, and no new ones are signed: they end with the first rotation. The identity stays in the list, because
    // removing it would restart the collector, for no gain once the key is gone.
    let workers = format!("{} {}", names.any_worker(), names.identity(Role::Worker));
    set("SPOOL", &if role == Role::Worker { format!("{LOCAL}/spool") } else { format!("{SPOOL}/spool") });
    for interval in ["UPDATE_INTERVAL", "MASTER_UPDATE_INTERVAL", "NEGOTIATOR_UPDATE_INTERVAL", "SCHEDD_INTERVAL"] {
        set(interval, &UPDATE_INTERVAL);
    }
    set("NEGOTIATOR_INTERVAL", &NEGOTIATOR_INTERVAL);
    text.push_str(COMMON);
    let mut set = |name: &str, value: &dyn std::fmt::Display| {
        let _ = writeln!(text, "{name} = {value}");
    };
    set("ALLOW_NEGOTIATOR", &central_manager);
    match role {
        Role::CentralManager => {
            // An administrator of the collector may drain any daemon of the pool: their ads carry the permission for
            // this.
            set("ALLOW_ADMINISTRATOR", &format!("{central_manager} {}", names.operator()));
            set("ALLOW_ADVERTISE_MASTER", &format!("{central_manager} {schedd} {workers}"));
            set("ALLOW_ADVERTISE_SCHEDD", &schedd);
            set("ALLOW_ADVERTISE_STARTD", &workers);
            text.push_str(CENTRAL_MANAGER);
        }
        Role::Schedd => {
            // The queue has jobs of all namespaces: a worker needs to see only those that it is given.
            let htcjobs = format!("{} {NAMESPACE_USER_PREFIX}*@{}", names.operator(), names.domain());
            set("ALLOW_READ", &format!("{htcjobs} {schedd} {central_manager}"));
            set("ALLOW_WRITE", &htcjobs);
            set("SCHEDD_NAME", &names.schedd());
            let length = NAMESPACE_USER_PREFIX.len();
            let owner = format!("Owner == \"{OPERATOR}\" || substr(Owner, 0, {length}) == \"{NAMESPACE_USER_PREFIX}\"");
            set("SUBMIT_REQUIREMENT_Owner", &owner);
            text.push_str(SCHEDD);
            text.push_str(&shadow::config());
        }
        Role::Worker => {
            set("MEMORY", &format!("$ENV(WORKER_MEMORY_MIB) - {RESERVE_MIB}"));
            set(POD_UID, &"\"$ENV(POD_UID)\"");
            set(WORKER_IMAGE, &"\"$ENV(WORKER_IMAGE)\"");
            set(WORKER_MINI_CLUSTER_ATTRIBUTE, &"\"$ENV(WORKER_MINI_CLUSTER)\"");
            set(WORKER_VOLUMES_ATTRIBUTE, &"\"$ENV(WORKER_VOLUMES)\"");
            set(WORKER_OWNER, &"\"$ENV(WORKER_OWNER)\"");
            let own =
                format!("(TARGET.{MINI_CLUSTER_ATTRIBUTE} ?: \"{NO_OWNER}\") =?= {WORKER_MINI_CLUSTER_ATTRIBUTE}");
            let volumes = format!("(TARGET.{VOLUMES_ATTRIBUTE} ?: \"{NO_OWNER}\") =?= {WORKER_VOLUMES_ATTRIBUTE}");
            // Jobs of the operator's user are from before each namespace had a user of its own.
            let owner = format!(
                "({WORKER_OWNER} == \"{NO_OWNER}\" || TARGET.Owner =?= {WORKER_OWNER} || TARGET.Owner =?= \"{OPERATOR}\")"
            );
            set("START", &format!("TARGET.{IMAGE_ATTRIBUTE} =?= {WORKER_IMAGE} && {own} && {volumes} && {owner}"));
            let told = [
                POD_UID,
                WORKER_IMAGE,
                WORKER_MINI_CLUSTER_ATTRIBUTE,
                WORKER_VOLUMES_ATTRIBUTE,
                WORKER_OWNER,
                PAYLOADS_ATTRIBUTE,
            ]
            .join(" ");
            set("STARTD_ATTRS", &format!("$(STARTD_ATTRS) {told}"));
            text.push_str(WORKER);
            text.push_str(&payload::config());
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use htc_api::ObjectName;
    use strum::IntoEnumIterator as _;

    use super::*;

    fn value<'a>(config: &'a str, name: &str) -> Option<&'a str> {
        config.lines().rev().find_map(|line| line.strip_prefix(name)?.strip_prefix(" ="))
    }

    #[test]
    fn each_role_authorizes_only_the_identities_it_needs() {
        let pool = ObjectName { namespace: "n".to_owned(), name: "p".to_owned() };
        let names = PoolNames::new(&pool, "0123456789").unwrap();
        let allowed = |role: Role, level: &str| {
            let config = condor_config(&names, role);
            let myself = value(&config, "MYSELF").unwrap().trim();
            let text = value(&config, level).unwrap().trim().replace("$(MYSELF)", myself);
            text.replace("@p.n.htcpool", "")
        };
        let writers = Role::iter().map(|role| allowed(role, "ALLOW_WRITE"));
        assert_eq!(writers.collect::<Vec<_>>(), ["", "operator ns-*", ""]);
        let readers = Role::iter().map(|role| allowed(role, "ALLOW_READ"));
        assert_eq!(
            readers.collect::<Vec<_>>(),
            ["*@$(UID_DOMAIN)", "operator ns-* schedd central-manager", "*@$(UID_DOMAIN)"]
        );
        let administrators = Role::iter().map(|role| allowed(role, "ALLOW_ADMINISTRATOR"));
        assert_eq!(administrators.collect::<Vec<_>>(), ["central-manager operator", "schedd", "$ENV(WORKER_IDENTITY)"]);
        for (level, who) in
            [("MASTER", "central-manager schedd worker-* worker"), ("SCHEDD", "schedd"), ("STARTD", "worker-* worker")]
        {
            let level = format!("ALLOW_ADVERTISE_{level}");
            let all = Role::iter().map(|role| allowed(role, &level));
            assert_eq!(all.collect::<Vec<_>>(), [who, "", ""], "{level}");
        }
        for role in Role::iter() {
            let config = condor_config(&names, role);
            assert_eq!(value(&config, "SEC_DEFAULT_AUTHENTICATION_METHODS"), Some(" IDTOKENS"));
            assert!(!config.contains("ALLOW_DAEMON = *") && !config.contains("use security"));
        }
    }

    #[test]
    fn remotely_controllable_features_are_disabled_in_each_role() {
        let names =
            PoolNames::new(&ObjectName { namespace: "n".to_owned(), name: "p".to_owned() }, "0123456789").unwrap();
        for role in Role::iter() {
            let config = condor_config(&names, role);
            for off in [
                "ENABLE_URL_TRANSFERS",
                "ENABLE_MULTIFILE_TRANSFER_PLUGINS",
                "SIGN_S3_URLS",
                "ENABLE_HTTP_PUBLIC_FILES",
                "ENABLE_CHIRP",
                "ENABLE_SSH_TO_JOB",
            ] {
                assert_eq!(value(&config, off), Some(" false"), "{role}: {off}");
            }
            for none in [
                "FILETRANSFER_PLUGINS",
                "SEC_CREDENTIAL_DIRECTORY",
                "SEC_CREDENTIAL_DIRECTORY_KRB",
                "SEC_CREDENTIAL_DIRECTORY_OAUTH",
            ] {
                assert_eq!(value(&config, none), Some(""), "{role}: {none}");
            }
        }
        let schedd = condor_config(&names, Role::Schedd);
        for (name, is) in [
            ("LIMIT_DIRECTORY_ACCESS", " /nonexistent"),
            ("START_LOCAL_UNIVERSE", " false"),
            ("START_SCHEDULER_UNIVERSE", " false"),
            ("IMMUTABLE_JOB_ATTRS", " JobUniverse"),
            ("SUBMIT_REQUIREMENT_NAMES", " Universe Owner"),
            ("SUBMIT_REQUIREMENT_Universe", " JobUniverse == 5"),
            ("SHADOW_WORKLIFE", " 0"),
            ("SUBMIT_REQUIREMENT_Owner", " Owner == \"operator\" || substr(Owner, 0, 3) == \"ns-\""),
        ] {
            assert_eq!(value(&schedd, name), Some(is), "{name}");
        }
    }

    #[test]
    fn worker_starts_only_jobs_of_its_image_and_tenant() {
        let names =
            PoolNames::new(&ObjectName { namespace: "n".to_owned(), name: "p".to_owned() }, "0123456789").unwrap();
        let config = condor_config(&names, Role::Worker);
        let start = " TARGET.HTCImage =?= HTCWorkerImage && (TARGET.HTCMiniCluster ?: \"-\") =?= HTCWorkerMiniCluster \
                     && (TARGET.HTCVolumes ?: \"-\") =?= HTCWorkerVolumes && (HTCWorkerOwner == \"-\" || TARGET.Owner =?= HTCWorkerOwner || TARGET.Owner =?= \"operator\")";
        assert_eq!(value(&config, "START"), Some(start));
        let told = value(&config, "STARTD_ATTRS").unwrap();
        assert!(
            ["HTCWorkerImage", "HTCWorkerMiniCluster", "HTCWorkerVolumes", "HTCWorkerOwner", "HTCPayloads"]
                .iter()
                .all(|name| told.contains(name)),
            "{told}"
        );
    }
}
