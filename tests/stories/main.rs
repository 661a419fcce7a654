//! Stories: what people and their devices live through with a whole node, over real sockets and all four framings.

mod acks;
mod assign;
mod chain;
mod devices;
mod disk;
mod drain;
mod events;
mod groups;
mod leaving;
mod login;
mod membership;
mod nodes;
mod personal;
mod recall;
mod rooms;
mod settings;
mod signals;
#[path = "../support/mod.rs"]
mod support;
mod sync;
mod talk;
