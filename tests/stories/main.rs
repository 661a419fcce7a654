//! Stories: what people and their devices live through with a whole node, over real sockets and all four framings.

mod login;
#[path = "../support/mod.rs"]
mod support;
