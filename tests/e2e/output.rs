//! What jobs leave: the end of their `err`, a cap on it, room for it, and how long it is kept.

mod err;
mod folders;
mod lanes;
mod limits;
mod retention;
mod selected;
mod unread;
