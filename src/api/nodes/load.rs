//! Load of this node, for `/readyz?verbose`.

use serde_json::{Value, json};

use crate::load::{GateFigures, LoadFigures, ShardFigures};

/// Returns the load level, the pressure that it follows, and the lag and the gates of each shard.
pub(in crate::api) fn state(load: &LoadFigures) -> Value {
    let (pressure, signal) = load.pressure();
    json!({
        "level": load.level(),
        "pressure": hundredths(pressure),
        "signal": signal,
        "shards": load.shards().iter().map(|it| shard(it)).collect::<Vec<Value>>(),
    })
}

fn shard(figures: &ShardFigures) -> Value {
    json!({
        "lagMs": figures.lag().as_millis() as u64,
        "busy": hundredths(figures.busy_ratio()),
        "waitMs": figures.announced_wait().as_millis() as u64,
        "sends": gate(&figures.sends),
        "logins": gate(&figures.logins),
        "reads": gate(&figures.reads),
    })
}

fn gate(figures: &GateFigures) -> Value {
    json!({"limit": figures.limit(), "inFlight": figures.in_flight()})
}

fn hundredths(number: f64) -> f64 {
    (number * 100.0).round() / 100.0
}
