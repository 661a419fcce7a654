//! Sections of the guard: limits, overload, storms, live rooms and evidence of abuse.

mod evidence;
mod limits;
mod overload;
mod rooms;
mod storm;

pub use self::{
    evidence::EvidenceConfig, limits::LimitsConfig, overload::OverloadConfig, rooms::RoomsConfig,
    storm::StormConfig,
};
