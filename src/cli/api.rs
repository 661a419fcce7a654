//! Commands of the server API: groups, histories and users.

pub mod group;
pub mod history;
pub mod user;
pub mod webhook;
