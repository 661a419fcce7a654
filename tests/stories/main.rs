//! Stories: users and their devices on a whole node, over real sockets and all four framings.

mod acks;
mod assign;
mod chain;
mod devices;
mod disconnects;
mod disk;
mod drain;
mod events;
mod groups;
mod login;
mod membership;
mod messages;
mod nodes;
mod personal;
mod presence;
mod reading;
mod recall;
mod rooms;
mod settings;
mod signals;
#[path = "../support/mod.rs"]
mod support;
mod sync;
