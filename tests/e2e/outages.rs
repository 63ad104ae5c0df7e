//! Whatever fails - the operator, the schedd, a submitter, the API server, the disk - and whenever it does: each job runs
//! exactly once, nothing is left behind, and the HTCJob says what is wrong.

mod data_folder;
mod etcd_restore;
mod events;
mod hanging_disk;
mod kubernetes;
mod leader;
mod lease;
mod operator;
mod other_schedd;
mod power_failure;
mod recovery;
mod schedd;
mod submitter;
