//! Settings: defaults, sources and what is refused.

use std::time::Duration;

use super::*;

#[test]
fn defaults_are_valid() {
    let mut problems = Vec::new();
    Config::default().check(&mut problems);
    assert!(problems.is_empty(), "{problems:?}");
}

#[test]
fn set_overrides_the_default_and_parses_lists() {
    let sets =
        ["limits.conns_per_ip=0".into(), "listen.origins=[https://a.example, https://b.example]".into()];
    let config = Config::load(None, &sets).unwrap();
    assert_eq!(config.limits.conns_per_ip, 0);
    assert_eq!(config.listen.origins, ["https://a.example", "https://b.example"]);
}

#[test]
fn public_address_needs_allow_public() {
    let public = "listen.client=192.0.2.1:7800".to_owned();
    let refused = Config::load(None, std::slice::from_ref(&public)).unwrap_err().to_string();
    assert!(refused.contains("listen.allow_public=true"), "{refused}");
    assert!(Config::load(None, &[public, "listen.allow_public=true".into()]).is_ok());
}

#[test]
fn admin_address_beyond_loopback_needs_keys_and_a_word_on_encryption() {
    let of = |sets: &[&str]| {
        let sets: Vec<String> = sets.iter().map(|set| (*set).to_owned()).collect();
        Config::load(None, &sets).map(drop).map_err(|error| error.to_string())
    };
    let (public, keys) = ("listen.admin=0.0.0.0:7801", "admin.keys_file=admin.keys");
    assert!(of(&[public]).unwrap_err().contains("tidegate key add"));
    assert!(of(&[public, "admin.allow_plaintext=true"]).unwrap_err().contains("admin.keys_file"));
    assert!(of(&[public, keys]).unwrap_err().contains("admin.allow_plaintext=true"));
    assert_eq!(of(&[public, keys, "admin.allow_plaintext=true"]), Ok(()));
    assert_eq!(of(&[keys]), Ok(()));
}

#[test]
fn node_is_for_development_by_its_defaults_only() {
    let of = |sets: &[&str]| {
        let sets: Vec<String> = sets.iter().map(|set| (*set).to_owned()).collect();
        let config = Config::load(None, &sets).unwrap();
        (config.is_development(), config.console())
    };
    assert_eq!(of(&[]), (true, ConsoleMode::Full));
    assert_eq!(of(&["admin.console=off"]), (true, ConsoleMode::Off));
    for other in [
        "admin.development=no",
        "listen.origins=[https://chat.example]",
        "listen.origins=[*]",
        "listen.allow_public=true",
        "assign.addresses=[chat.example:443]",
        "auth.key_file=key",
    ] {
        assert_eq!(of(&[other]), (false, ConsoleMode::Read), "{other}");
        assert_eq!(of(&[other, "admin.console=full"]), (false, ConsoleMode::Full), "{other}");
    }
    let key = "auth.key_file=key";
    assert_eq!(of(&[key, "admin.development=yes"]), (true, ConsoleMode::Full));
    let public = ["listen.client=192.0.2.1:7800", "listen.allow_public=true", "admin.development=yes"];
    let refused = Config::load(None, &public.map(str::to_owned)).unwrap_err().to_string();
    assert!(refused.contains("admin.development: `yes` needs a loopback address"), "{refused}");
    for wrong in ["admin.console=on", "admin.development=maybe"] {
        assert!(Config::load(None, &[wrong.to_owned()]).is_err(), "{wrong}");
    }
}

#[test]
fn load_balancers_get_time_unless_the_listener_is_loopback() {
    let delay = |sets: &[&str]| {
        let sets: Vec<String> = sets.iter().map(|set| (*set).to_owned()).collect();
        Config::load(None, &sets).unwrap().drain_settings().lb_delay
    };
    assert_eq!(delay(&[]), Duration::ZERO);
    assert_eq!(delay(&["drain.lb_delay_ms=70"]), Duration::from_millis(70));
    assert_eq!(delay(&["listen.client=0.0.0.0:7800", "listen.allow_public=true"]), Duration::from_secs(5));
    let short = Config::load(None, &["drain.deadline_ms=5000".into()]).unwrap_err().to_string();
    assert!(short.contains("drain.deadline_ms"), "{short}");
}

#[test]
fn load_names_every_problem_with_its_cure() {
    let sets = ["limits.conns_per_ipp=1".into(), "timing.reply_ms=1".into(), "node.profile=cluster".into()];
    let text = Config::load(None, &sets).unwrap_err().to_string();
    for part in ["conns_per_ipp: no such key; did you mean limits.conns_per_ip?", "timing:", "node.profile"] {
        assert!(text.contains(part), "{part:?} is missing in {text}");
    }
}
