//! What goes wrong: hubs and agents that are killed, frozen or lost, links that are cut, orders that wait. Whatever
//! happens, no copy goes without an order, nothing is done twice, and the status tells the truth.

#[path = "faults/away.rs"]
mod away;
#[path = "faults/cut.rs"]
mod cut;
#[path = "faults/lost.rs"]
mod lost;
#[path = "faults/patched.rs"]
mod patched;
#[path = "faults/restarts.rs"]
mod restarts;
#[path = "faults/silence.rs"]
mod silence;
#[path = "faults/slow.rs"]
mod slow;
#[path = "faults/stage.rs"]
mod stage;
#[path = "faults/watches.rs"]
mod watches;
