//! In whose name: the operator's own tickets and tokens, and those that people put into Secrets beside their HTCJobs. On a
//! real pool, a real API server and a real KDC.

mod ads;
mod config_maps;
mod kerberos;
mod limits;
mod orphans;
mod secrets;
pub mod site;
mod trouble;
