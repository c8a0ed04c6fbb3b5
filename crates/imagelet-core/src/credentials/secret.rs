//! A text that must not be seen.

use std::fmt;

use zeroize::{Zeroize as _, Zeroizing};

/// A password or token. Prints as `[redacted]`; has no `Display`; its memory is overwritten when it goes.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(String);

impl Secret {
    /// Hides a text.
    pub fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }

    /// Hides what bytes spell, and overwrites them; what is no UTF-8 is replaced.
    pub fn from_bytes(bytes: Vec<u8>) -> Self {
        let bytes = Zeroizing::new(bytes);
        Self(String::from_utf8_lossy(&bytes).into_owned())
    }

    /// Shows it, for a message to a registry.
    pub fn expose(&self) -> &str {
        &self.0
    }
}

impl Drop for Secret {
    fn drop(&mut self) {
        self.0.zeroize();
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("[redacted]")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_secret_does_not_print() {
        assert_eq!(format!("{:?}", Secret::new("hunter2")), "[redacted]");
    }
}
