use testbed::Version;
pub fn jobs_of_a_kerberos_user(_version: Version) {}
