//! A URL as Go's `net/url` parses it.

use super::quoted;

/// The parts of a URL. The user, the query and the fragment are dropped.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GoUrl {
    /// The scheme in lower case; empty for a text without a scheme.
    pub scheme: String,
    pub host: String,
    /// The decoded path. It may be invalid UTF-8, because an escape may be any byte.
    pub path: Vec<u8>,
}

impl GoUrl {
    /// Parses a text. An error has Go's text.
    pub fn parse(text: &str) -> Result<Self, String> {
        let (text, fragment) = text.split_once('#').unwrap_or((text, ""));
        if text.bytes().any(|byte| byte.is_ascii_control()) {
            return Err("net/url: invalid control character in URL".to_owned());
        }
        let (scheme, rest) = split_scheme(text)?;
        unescaped(fragment)?;
        let rest = rest.split_once('?').map_or(rest, |(rest, _)| rest);
        if !rest.starts_with('/') {
            // If a scheme is not followed by a slash, the URL is opaque and has no path.
            if !scheme.is_empty() {
                return Ok(Self { scheme, ..Self::default() });
            }
            if rest.split('/').next().is_some_and(|segment| segment.contains(':')) {
                return Err("first path segment in URL cannot contain colon".to_owned());
            }
        }
        let has_authority = rest.starts_with("//") && (!scheme.is_empty() || !rest.starts_with("///"));
        let (authority, path) = match rest.strip_prefix("//").filter(|_| has_authority) {
            Some(rest) => rest.split_at(rest.find('/').unwrap_or(rest.len())),
            None => ("", rest),
        };
        let (user, host) = authority.rsplit_once('@').unwrap_or(("", authority));
        check_user(user)?;
        check_host(host)?;
        let host = String::from_utf8_lossy(&unescaped(host)?).into_owned();
        Ok(Self { scheme, host, path: unescaped(path)? })
    }
}

/// The scheme in lower case, empty if absent, and the rest of the text.
fn split_scheme(text: &str) -> Result<(String, &str), String> {
    for (position, byte) in text.bytes().enumerate() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' => {}
            b'0'..=b'9' | b'+' | b'-' | b'.' if position > 0 => {}
            b':' if position == 0 => return Err("missing protocol scheme".to_owned()),
            b':' => return Ok((text[..position].to_ascii_lowercase(), &text[position + 1..])),
            _ => break,
        }
    }
    Ok((String::new(), text))
}

fn check_user(user: &str) -> Result<(), String> {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._:~!$&'()*+,;=%@".contains(&byte);
    if !user.bytes().all(plain) {
        return Err("net/url: invalid userinfo".to_owned());
    }
    unescaped(user).map(drop)
}

fn check_host(host: &str) -> Result<(), String> {
    let port = if host.starts_with('[') {
        let end = host.rfind(']').ok_or("missing ']' in host")?;
        &host[end + 1..]
    } else if host.contains('[') {
        return Err("invalid IP-literal".to_owned());
    } else {
        host.rfind(':').map_or("", |colon| &host[colon..])
    };
    if !port.is_empty() && !port.strip_prefix(':').is_some_and(|port| port.bytes().all(|byte| byte.is_ascii_digit())) {
        return Err(format!("invalid port {} after host", quoted(port)));
    }
    for (index, character) in host.char_indices() {
        let plain =
            character.is_ascii_alphanumeric() || "-._~!$&'()*+,;=:[]<>\"".contains(character) || !character.is_ascii();
        if character == '%' {
            // Except for the percent sign of a zone, an escape in a host must not be an ASCII character.
            let value = escaped(&host.as_bytes()[index..]).ok_or_else(|| escape_error(&host[index..]))?;
            if value < 0x80 && value != b'%' {
                return Err(escape_error(&host[index..]));
            }
        } else if !plain {
            return Err(format!("invalid character {} in host name", quoted(&character.to_string())));
        }
    }
    Ok(())
}

fn unescaped(text: &str) -> Result<Vec<u8>, String> {
    let mut decoded = Vec::with_capacity(text.len());
    let mut index = 0;
    while let Some(byte) = text.as_bytes().get(index) {
        if *byte == b'%' {
            decoded.push(escaped(&text.as_bytes()[index..]).ok_or_else(|| escape_error(&text[index..]))?);
            index += 3;
        } else {
            decoded.push(*byte);
            index += 1;
        }
    }
    Ok(decoded)
}

fn escaped(text: &[u8]) -> Option<u8> {
    let [b'%', high, low, ..] = text else { return None };
    let digit = |byte: &u8| char::from(*byte).to_digit(16);
    u8::try_from(digit(high)? << 4 | digit(low)?).ok()
}

fn escape_error(text: &str) -> String {
    format!("invalid URL escape {}", quoted(&text[..text.floor_char_boundary(3)]))
}
