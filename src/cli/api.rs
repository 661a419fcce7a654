//! Commands of the server API: events, groups, histories and users.

pub mod event;
pub mod group;
pub mod history;
pub mod user;
pub mod webhook;
