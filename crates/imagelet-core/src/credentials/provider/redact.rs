//! Removes possible secrets from plugin output, which reaches logs and messages. Known secrets are removed everywhere.
//! Other text is removed if it looks like a credential or a response.

use std::fmt::Write as _;

use zeroize::Zeroizing;

use crate::credentials::{Secret, spellings};

const REDACTED: &str = "[redacted]";
/// A known secret that is shorter is not searched, because its removal would make the output unreadable.
const KNOWN_LENGTH_MIN: usize = 6;
/// A part of at least this length looks like a secret if it has digits and letters of both cases.
const RUN_LENGTH_MIN: usize = 24;
const SHOWN_MAX: usize = 4096;
/// The word after a marker is a secret. Markers match in any case.
const MARKERS: [&str; 9] =
    ["password", "passwd", "secret", "token", "authorization", "bearer", "basic", "api_key", "apikey"];

const TEXTS_MAX: usize = 1000;

pub(super) fn redact<'a>(complaint: &[u8], known: impl IntoIterator<Item = &'a str>) -> String {
    let mut text = String::from_utf8_lossy(complaint).into_owned();
    let known: Vec<Secret> = known.into_iter().flat_map(spellings).collect();
    // Longest first, because a secret may be part of another secret.
    let mut known: Vec<&str> = known
        .iter()
        .map(Secret::expose)
        .flat_map(|secret| [secret].into_iter().chain(secret.split('.').filter(|part| part.len() >= RUN_LENGTH_MIN)))
        .filter(|secret| secret.len() >= KNOWN_LENGTH_MIN)
        .collect();
    known.sort_by_key(|secret| std::cmp::Reverse(secret.len()));
    for secret in known {
        text = text.replace(secret, REDACTED);
    }
    let shown: Vec<String> = text.split_inclusive('\n').map(redact_line).collect();
    cut(shown.concat())
}

/// The quoted texts in an unreadable response that may be secrets, without field names and public texts.
pub(super) fn texts_of(answer: &[u8]) -> Vec<Secret> {
    const PUBLIC: [&str; 2] = ["CredentialProviderResponse", "credentialprovider.kubelet.k8s.io/"];
    let answer = Zeroizing::new(String::from_utf8_lossy(answer).into_owned());
    let (mut texts, mut rest) = (Vec::new(), answer.as_str());
    while let Some(start) = rest.find('"')
        && texts.len() < TEXTS_MAX
    {
        rest = &rest[start + 1..];
        let mut escaped = false;
        let is_end = |c: char| {
            let ends = c == '"' && !escaped;
            escaped = c == '\\' && !escaped;
            ends
        };
        let end = rest.find(is_end).unwrap_or(rest.len());
        let text = &rest[..end];
        rest = rest.get(end + 1..).unwrap_or_default();
        let is_name = rest.trim_start().starts_with(':');
        if is_name || text.len() < KNOWN_LENGTH_MIN || PUBLIC.iter().any(|public| text.starts_with(public)) {
            continue;
        }
        texts.push(Secret::new(text));
        if let Ok(plain) = serde_json::from_str::<String>(&Zeroizing::new(format!("\"{text}\""))) {
            texts.push(Secret::new(plain));
        }
    }
    texts
}

fn redact_line(line: &str) -> String {
    if line.contains("CredentialProviderResponse") || line.contains("\"auth\"") {
        return REDACTED.to_owned() + if line.ends_with('\n') { "\n" } else { "" };
    }
    redact_runs(&redact_marked(line))
}

/// Removes the word after each marker: `password=x`, `"token": "x"`, `Authorization: Basic x`.
fn redact_marked(line: &str) -> String {
    let lower = line.to_ascii_lowercase();
    let mut shown = String::with_capacity(line.len());
    let mut at = 0;
    while let Some(end) = MARKERS
        .iter()
        .filter_map(|marker| lower[at..].find(marker).map(|found| (found, at + found + marker.len())))
        .min()
        .map(|(_, end)| end)
    {
        shown.push_str(&line[at..end]);
        at = end;
        let rest = &line[at..];
        let gap = rest.find(|c: char| !"\"'=: \t\\".contains(c)).unwrap_or(rest.len());
        let joined =
            rest[..gap].contains(['=', ':']) || lower[..end].ends_with("bearer") || lower[..end].ends_with("basic");
        if gap == 0 || !joined {
            continue;
        }
        let value = &rest[gap..];
        let length = value.find(|c: char| c.is_whitespace() || "\"',;&)}]\\".contains(c)).unwrap_or(value.len());
        // A marker after a marker (`Authorization: Bearer x`) is processed in its own iteration.
        if MARKERS.contains(&value[..length].to_ascii_lowercase().as_str()) {
            continue;
        }
        shown.push_str(&rest[..gap]);
        if length > 0 {
            shown.push_str(REDACTED);
        }
        at += gap + length;
    }
    shown.push_str(&line[at..]);
    shown
}

fn redact_runs(line: &str) -> String {
    let ends_run = |c: char| !(c.is_ascii_alphanumeric() || "+/_=-.~".contains(c));
    let shown = line.split_inclusive(ends_run).flat_map(|text| {
        let run = text.trim_end_matches(ends_run);
        [if run.split(['/', '.']).any(looks_secret) { REDACTED } else { run }, &text[run.len()..]]
    });
    shown.collect()
}

fn looks_secret(run: &str) -> bool {
    let has = |kind: fn(&u8) -> bool| run.as_bytes().iter().any(kind);
    run.len() >= RUN_LENGTH_MIN && has(u8::is_ascii_uppercase) && has(u8::is_ascii_lowercase) && has(u8::is_ascii_digit)
}

fn cut(mut text: String) -> String {
    if text.len() > SHOWN_MAX {
        let left = text.len();
        let end = text.floor_char_boundary(SHOWN_MAX);
        text.truncate(end);
        write!(text, "… ({} bytes more)", left - end).expect("writing to a string cannot fail");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    const TOKEN: &str =
        "eyJhbGciOiJSUzI1NiIsImtpZCI6IkFCQyJ9.eyJpc3MiOiJodHRwczovL2t1YmUifQ.c2lnbmF0dXJlLXNpZ25hdHVyZTEy";

    #[test]
    fn what_a_plugin_complains_stays_readable() {
        for text in [
            "some stderr\n",
            "exit: cannot reach https://sts.eu-central-1.amazonaws.com/: dial tcp 10.0.0.1:443: i/o timeout\n",
            "AccessDenied: User arn:aws:sts::123456789012:assumed-role/node is not authorized\n",
            "request id: 01234567-89ab-cdef-0123-456789abcdef",
            "/usr/lib/credential-provider/plugins: permission denied",
            "token expired, password required",
            &"e".repeat(200),
        ] {
            assert_eq!(redact(text.as_bytes(), []), *text);
        }
    }

    #[test]
    fn what_may_be_a_secret_is_taken_out() {
        let known = ["hunter2", TOKEN];
        for text in [
            format!("the token is {TOKEN}"),
            format!("its signature {}", TOKEN.rsplit('.').next().unwrap()),
            "env PASS_WORD hunter2".to_owned(),
            "Password: swordfish\n".to_owned(),
            "{\"password\": \"swordfish\"}".to_owned(),
            "{\\\"token\\\": \\\"swordfish\\\"}".to_owned(),
            "curl -H 'Authorization: Bearer swordfish'".to_owned(),
            "authorization: basic swordfish==".to_owned(),
            "https://x/?access_token=swordfish&a=b".to_owned(),
            "got {\"kind\":\"CredentialProviderResponse\",\"x\":\"swordfish\"}".to_owned(),
            "  \"auth\": {\"reg.io\": {\"username\": \"u\", \"pass\": \"swordfish\"}}".to_owned(),
            "AQICAHhwm0YaISJeRtJm5n1G6uqeekXuoXXPe5UFce9Rq8 swordfish-is-behind password=swordfish"
                .replace("swordfish-is-behind", "is"),
        ] {
            let shown = redact(text.as_bytes(), known);
            for secret in ["hunter2", "swordfish", TOKEN.rsplit('.').next().unwrap(), "AQICAH"] {
                assert!(!shown.contains(secret), "{text} became {shown}");
            }
            assert!(shown.contains(REDACTED), "{shown}");
        }
    }

    #[test]
    fn the_bounds_of_what_is_a_secret_hold_to_the_letter() {
        let run = |letters: usize| format!("A1{}", "b".repeat(letters - 2));
        let part = "x".repeat(RUN_LENGTH_MIN);
        let token = format!("head.{part}.tail");
        for (text, known, is_shown) in [
            ("say secre".to_owned(), "secre", true),
            ("say secrey".to_owned(), "secrey", false),
            (format!("say {part}"), token.as_str(), false),
            (format!("say {}", &part[1..]), &token[1..], true),
            (run(RUN_LENGTH_MIN - 1), "-", true),
            (run(RUN_LENGTH_MIN), "-", false),
            ("password=,".to_owned(), "-", true),
            ("e".repeat(SHOWN_MAX), "-", true),
            ("e".repeat(SHOWN_MAX + 1), "-", false),
        ] {
            assert_eq!(redact(text.as_bytes(), [known]) == text, is_shown, "{text}");
        }
        assert_eq!(
            texts_of(br#"{"a":"12345","b":"abcdef"}"#).len(),
            2,
            "as it stands and as it reads, of the longer one"
        );
    }

    #[test]
    fn the_texts_of_an_answer_that_does_not_read_are_known() {
        let texts = |answer: &str| -> Vec<String> {
            texts_of(answer.as_bytes()).iter().map(|text| text.expose().to_owned()).collect()
        };
        let answer = r#"{"kind":"CredentialProviderResponse","auth":{"registry.io":{"username" : "robot","password":"pass\"w\\", "x":"swordfi"#;
        assert_eq!(texts(answer), [r#"pass\"w\\"#, r#"pass"w\"#, "swordfi", "swordfi"]);
        assert!(texts("").is_empty() && texts("\"").is_empty() && texts("\"\\").is_empty());
        assert!(texts("no quotes hunter2").is_empty());
        assert!(texts(&"\"longer\",".repeat(10_000)).len() <= TEXTS_MAX + 1);
        let known = texts(answer);
        let shown = redact(br#"bad pass\"w\\ and pass"w\ and swordfish"#, known.iter().map(String::as_str));
        assert_eq!(shown, "bad [redacted] and [redacted] and [redacted]sh");
    }

    #[test]
    fn a_long_complaint_is_cut_at_a_character() {
        let shown = redact("é".repeat(4096).as_bytes(), []);
        assert!(shown.ends_with("… (4096 bytes more)"), "{}", &shown[shown.len() - 40..]);
        assert!(shown.len() < SHOWN_MAX + 40);
    }
}
