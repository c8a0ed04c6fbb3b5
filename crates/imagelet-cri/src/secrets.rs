//! Keeps what a pull request carries out of logs.

use std::fmt;

use crate::v1::AuthConfig;

/// Shows who asks where, and whether a secret is there, never the secret.
impl fmt::Debug for AuthConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let hidden = |secret: &str| if secret.is_empty() { "" } else { "[redacted]" };
        f.debug_struct("AuthConfig")
            .field("username", &self.username)
            .field("password", &hidden(&self.password))
            .field("auth", &hidden(&self.auth))
            .field("server_address", &self.server_address)
            .field("identity_token", &hidden(&self.identity_token))
            .field("registry_token", &hidden(&self.registry_token))
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::v1::PullImageRequest;

    #[test]
    fn a_printed_pull_request_hides_every_secret() {
        let request = PullImageRequest {
            auth: Some(AuthConfig {
                username: "bob".into(),
                password: "hunter2".into(),
                auth: "Ym9iOmh1bnRlcjI=".into(),
                server_address: "r.example".into(),
                identity_token: "refresh-me".into(),
                registry_token: "bearer-me".into(),
            }),
            ..PullImageRequest::default()
        };
        let text = format!("{request:?}");
        for secret in ["hunter2", "Ym9i", "refresh-me", "bearer-me"] {
            assert!(!text.contains(secret), "{text}");
        }
        assert!(text.contains("bob") && text.contains("r.example") && text.contains("[redacted]"), "{text}");
    }
}
