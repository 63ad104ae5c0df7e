//! Faults from all sides: the API server refuses, loses answers and forgets; the schedd dies, hangs, loses its queue and lies;
//! the disk is full; the ledger goes. Each HTCJob ends right, its jobs run once, and whoever waits says for what.

mod api_server;
mod at_rest;
mod disk;
mod hanging_requests;
mod history;
mod ledger;
mod limits;
mod queue;
mod schedd;
mod stuck;
