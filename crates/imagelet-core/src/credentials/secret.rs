//! A secret text: hidden in output, overwritten in memory.

use std::fmt;

use zeroize::{Zeroize as _, Zeroizing};

/// A password or token. Prints as `[redacted]`, has no `Display`, and overwrites its memory on drop.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(String);

impl Secret {
    /// Wraps a text.
    pub fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }

    /// Wraps and overwrites bytes; invalid UTF-8 is replaced.
    pub fn from_bytes(bytes: Vec<u8>) -> Self {
        let bytes = Zeroizing::new(bytes);
        Self(String::from_utf8_lossy(&bytes).into_owned())
    }

    /// Returns the text, for a request to a registry.
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
