//! Who may send what where: grants, and who may write rules.

#[path = "grants/matrix.rs"]
mod matrix;
#[path = "grants/oracle.rs"]
mod oracle;
