//! The commands of docs/upgrading.md.

use testbed::Version;

pub fn its_commands_work(_version: Version) {}
