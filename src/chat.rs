//! The use-cases of conversations, one verb a file.

pub mod admin;
pub mod answered;
pub mod asking;
pub mod clear;
pub mod courier;
pub mod deliver;
pub mod hands;
pub mod hide;
pub mod history;
pub mod login;
pub mod members;
pub mod owner;
pub mod peer;
mod point;
mod progress;
pub mod reach;
pub mod reader;
pub mod recall;
pub mod receipt;
pub mod retention;
mod seek;
pub mod send;
mod stall;
pub mod sync;
mod unanswered;
pub mod unread;
