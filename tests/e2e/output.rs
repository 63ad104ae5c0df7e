//! Output of jobs: the end of their `err`, limits of size and space, and retention.

mod err;
mod folders;
mod hanging_fetches;
mod limits;
mod missing_files;
mod retention;
mod spec_outputs;
