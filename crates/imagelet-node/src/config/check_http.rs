//! The rules of the keys below `http`: the address of the daemon, and the clients that get answers.

use std::net::IpAddr;

use super::{keys_and_defaults::HttpKeys, settings::HttpSettings, violations::Violations};

pub(super) fn check(keys: &HttpKeys, found: &mut Violations) -> HttpSettings {
    let HttpKeys { address, token_file, host_names, actions } = keys;
    let host = address.rsplit_once(':').filter(|(host, port)| !host.is_empty() && port.parse::<u16>().is_ok());
    found.rule(address.is_empty() || host.is_some(), "http.address", format!("`{address}`"), "must be HOST:PORT");
    let token_file = found.path("http.tokenFile", token_file);
    let has_token = token_file.is_some();
    // Only an IP address is checked now. A host name is checked when the daemon binds to it.
    let ip = host.and_then(|(host, _)| host.trim_matches(['[', ']']).parse::<IpAddr>().ok());
    if ip.is_some_and(|ip| !ip.is_loopback()) && !has_token {
        found.add_of(
            &["http.address", "http.tokenFile"],
            format!("http.address `{address}` is not loopback and needs http.tokenFile"),
        );
    }
    if *actions && !has_token {
        found.add_of(&["http.actions", "http.tokenFile"], "http.actions needs http.tokenFile");
    }
    for name in host_names {
        let is_name = !name.is_empty() && name.bytes().all(|c| c.is_ascii_alphanumeric() || b"-._".contains(&c));
        found.rule(is_name, "http.hostNames", format!("`{name}`"), "must be a host name without port");
    }
    HttpSettings {
        address: Some(address.clone()).filter(|address| !address.is_empty()),
        token_file,
        host_names: host_names.clone(),
        actions: *actions,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_open_address_and_actions_need_a_token() {
        let keys = |address: &str, token_file: &str, actions| HttpKeys {
            address: address.into(),
            token_file: token_file.into(),
            actions,
            ..HttpKeys::default()
        };
        for (given, expected) in [
            (keys("", "", false), None),
            (keys("127.0.0.1:9100", "", false), None),
            (keys("[::1]:9100", "", false), None),
            (keys("localhost:9100", "", false), None),
            (keys("0.0.0.0:9100", "/etc/imagelet/token", true), None),
            (
                keys("0.0.0.0:9100", "", false),
                Some("http.address `0.0.0.0:9100` is not loopback and needs http.tokenFile"),
            ),
            (keys("[::]:9100", "", false), Some("http.address `[::]:9100` is not loopback")),
            (keys("192.0.2.7:9100", "", false), Some("is not loopback")),
            (keys("127.0.0.1:9100", "", true), Some("http.actions needs http.tokenFile")),
            (keys("127.0.0.1", "", false), Some("must be HOST:PORT")),
            (keys("127.0.0.1:9100", "token", false), Some("http.tokenFile `token` must be an absolute path")),
        ] {
            let mut found = Violations::default();
            let settings = check(&given, &mut found);
            let messages: Vec<_> = found.0.iter().map(|it| it.message.as_str()).collect();
            match expected {
                None => assert_eq!(
                    (messages.len(), settings.address.is_some()),
                    (0, !given.address.is_empty()),
                    "{given:?}"
                ),
                Some(words) => assert!(messages.len() == 1 && messages[0].contains(words), "{given:?}: {messages:?}"),
            }
        }
    }

    #[test]
    fn a_host_name_has_neither_port_nor_scheme() {
        for (name, is_name) in
            [("node-1.example", true), ("a_b", true), ("", false), ("a:1", false), ("http://a", false)]
        {
            let mut found = Violations::default();
            check(&HttpKeys { host_names: vec![name.into()], ..HttpKeys::default() }, &mut found);
            assert_eq!(found.0.is_empty(), is_name, "{name}");
        }
    }
}
