//! Converts a name in the archive to a path inside the layer.

use super::{UnpackLimits, error::Fault};

const COMPONENT_MAX: usize = 255;

/// Removes `.`, `..`, and leading, doubled and trailing slashes from a name. An empty result is the layer's root. Some
/// builders write absolute names (kaniko writes `/` itself). All unpackers treat them as relative to the layer.
pub(crate) fn clean(name: &[u8], what: &'static str, limits: &UnpackLimits) -> Result<Vec<u8>, Fault> {
    if name.is_empty() {
        return Err(Fault::refused(format!("its {what} is empty")));
    }
    if name.contains(&0) {
        return Err(Fault::malformed(format!("its {what} has a NUL byte")));
    }
    if name.len() > limits.path_max {
        return Err(Fault::limit(format!("its {what} is longer than {} bytes", limits.path_max)));
    }
    let mut path = Vec::with_capacity(name.len());
    let mut depth = 0;
    for component in name.split(|&byte| byte == b'/') {
        match component {
            b"" | b"." => {}
            b".." => {
                if path.is_empty() {
                    return Err(Fault::refused(format!("its {what} climbs out of the layer")));
                }
                path.truncate(split(&path).0.len());
                depth -= 1;
            }
            _ => {
                depth += 1;
                if component.len() > COMPONENT_MAX {
                    return Err(Fault::limit(format!(
                        "a component of its {what} is longer than {COMPONENT_MAX} bytes"
                    )));
                }
                if depth > limits.depth_max {
                    return Err(Fault::limit(format!("its {what} is deeper than {} directories", limits.depth_max)));
                }
                push(&mut path, component);
            }
        }
    }
    Ok(path)
}

pub(crate) fn split(path: &[u8]) -> (&[u8], &[u8]) {
    match path.iter().rposition(|&byte| byte == b'/') {
        Some(slash) => (&path[..slash], &path[slash + 1..]),
        None => (&[], path),
    }
}

pub(crate) fn join(parent: &[u8], name: &[u8]) -> Vec<u8> {
    let mut path = Vec::with_capacity(parent.len() + 1 + name.len());
    path.extend_from_slice(parent);
    push(&mut path, name);
    path
}

fn push(path: &mut Vec<u8>, component: &[u8]) {
    if !path.is_empty() {
        path.push(b'/');
    }
    path.extend_from_slice(component);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_cleaned_and_never_climb() {
        let limits = UnpackLimits::default();
        for (name, path) in [
            ("a", "a"),
            ("./a//b/", "a/b"),
            (".", ""),
            ("./", ""),
            ("d/..", ""),
            ("a/../b/./c", "b/c"),
            ("..a", "..a"),
            ("/", ""),
            ("//", ""),
            ("/etc/x", "etc/x"),
        ] {
            assert_eq!(clean(name.as_bytes(), "name", &limits).unwrap(), path.as_bytes(), "{name}");
        }
        for name in ["", "/..", "/../a", "..", "../a", "a/../..", "a/../../b", "./..", "a\0b"] {
            clean(name.as_bytes(), "name", &limits).expect_err(name);
        }
        assert_eq!(clean(b"/etc/passwd", "hard link target", &limits).unwrap(), b"etc/passwd");
    }

    #[test]
    fn long_and_deep_names_are_over_the_limit() {
        let limits = UnpackLimits::default();
        // Neither are these: as long and as deep as a name may be, and deep only on the way.
        for name in [format!("{}abcdefg", "abcdefg/".repeat(511)) + "/", "d/".repeat(512), "d/../".repeat(600) + "x"] {
            clean(name.as_bytes(), "name", &limits).unwrap();
        }
        clean("abcdefg/".repeat(512).as_bytes(), "name", &limits).unwrap();
        for name in ["x".repeat(256), "abc/".repeat(1100), "d/".repeat(2000)] {
            let refused = clean(name.as_bytes(), "name", &limits).unwrap_err();
            assert_eq!(refused.kind, crate::unpack::UnpackErrorKind::Limit);
        }
    }
}
