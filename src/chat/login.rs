//! Login: become the route of the device, and learn where its chain stands (DESIGN 6.4, 7).

use std::sync::Arc;

use tidegate_protocol::{
    Code,
    id::{DeviceId, UserId},
    settings::UserSettings,
};

use crate::{
    mail::{LoginDone, LoginError},
    ports::Ports,
    routes::{Registration, Route},
};

/// Keeps what the user wishes, registers the device's route and loads its chain; the newest login wins at once, whatever
/// was there.
pub async fn login(
    ports: Arc<Ports>,
    user: UserId,
    device: DeviceId,
    now: UserSettings,
) -> Result<LoginDone, LoginError> {
    // First what may wait for a disk: from the moment the route stands until its shard has the answer nothing may wait, or
    // the mail of a newer login that replaces it comes before it and finds nobody. Lost wishes are no reason to refuse.
    let wishes = ports.store.wishes(&user, now).await.unwrap_or_else(|error| {
        tracing::warn!(%error, "the settings of a login could not be kept");
        now
    });
    let wish = Registration {
        user: user.clone(),
        device: device.clone(),
        at: ports.me.clone(),
        above: 0,
        only_if: None,
    };
    let registered = ports.routes.register(wish).await.map_err(|error| {
        tracing::warn!(%error, "a login could not be registered");
        LoginError { code: Code::Overloaded, reason: "logins are not possible right now; try again" }
    })?;
    // A lost chain is no reason to refuse: the client declares its own next id, and retries of done ids are acked.
    let chain = ports.scratch.load_chain(&user, &device).await.unwrap_or_default();
    let route = Route { user, device, token: registered.token };
    Ok(LoginDone { route, replaced: registered.replaced.is_some(), chain, wishes })
}
