//! Failures: killed, frozen or lost hubs and agents, cut connections, pending removals. No copy is
//! removed without an order, nothing is done twice, and the status is right.

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
