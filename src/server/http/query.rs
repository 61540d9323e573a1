//! Parameters of requests: in the URL, or in a JSON body, which is necessary for names that are too long for a URL.
//!
//! A name may be any bytes. It is the parameter `name` if it is UTF-8, or else `name_hex`: its bytes in hexadecimal
//! digits. Answers use the same two keys.

use std::collections::BTreeMap;
use std::fmt;
use std::ops::RangeInclusive;

use serde::Deserialize;
use serde::de::{Deserializer, Error, MapAccess, SeqAccess, Visitor};
use serde_json::Number;

use super::super::port::port_name;
use super::answer::ApiError;
use crate::config::closest;
use signalbox_model::{LABEL_BYTES_MAX, Milliseconds, Namespace, Quoted, from_hex, span};

/// The longest name, in bytes.
pub(super) const NAME_BYTES_MAX: usize = 65_535;

/// The parameters of one request. Each is taken once; those that are left at the end are unknown.
#[derive(Debug, Default)]
pub(super) struct Parameters {
    /// The parameters that were not taken yet, by their names.
    given: BTreeMap<String, Value>,
    /// The names of the parameters that were looked up: those that the request may have.
    known: Vec<&'static str>,
}

#[derive(Debug)]
enum Value {
    Null,
    Flag(bool),
    Number(Number),
    Text(String),
    List(Vec<Value>),
    Object(Parameters),
}

impl<'de> Deserialize<'de> for Value {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Any;

        impl<'de> Visitor<'de> for Any {
            type Value = Value;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a value of JSON")
            }

            fn visit_unit<E>(self) -> Result<Value, E> {
                Ok(Value::Null)
            }

            fn visit_bool<E>(self, flag: bool) -> Result<Value, E> {
                Ok(Value::Flag(flag))
            }

            fn visit_u64<E>(self, number: u64) -> Result<Value, E> {
                Ok(Value::Number(number.into()))
            }

            fn visit_i64<E>(self, number: i64) -> Result<Value, E> {
                Ok(Value::Number(number.into()))
            }

            fn visit_f64<E: Error>(self, number: f64) -> Result<Value, E> {
                Number::from_f64(number).map(Value::Number).ok_or_else(|| E::custom("a number is not finite"))
            }

            fn visit_str<E>(self, text: &str) -> Result<Value, E> {
                Ok(Value::Text(text.to_owned()))
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Value, A::Error> {
                let mut list = Vec::new();
                while let Some(item) = items.next_element()? {
                    list.push(item);
                }
                Ok(Value::List(list))
            }

            /// A parameter that is given twice is refused: another reader of the same body may take the other one.
            fn visit_map<A: MapAccess<'de>>(self, mut fields: A) -> Result<Value, A::Error> {
                let mut object = Parameters::default();
                while let Some((key, value)) = fields.next_entry()? {
                    object.add(key, value).map_err(A::Error::custom)?;
                }
                Ok(Value::Object(object))
            }
        }

        deserializer.deserialize_any(Any)
    }
}

impl Parameters {
    /// Reads the query of a URL.
    pub(super) fn of_query(query: &str) -> Result<Self, ApiError> {
        let mut parameters = Self::default();
        for pair in query.split('&').filter(|pair| !pair.is_empty()) {
            let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
            parameters
                .add(decoded(key)?, Value::Text(decoded(value)?))
                .map_err(|problem| ApiError::bad_request(format!("{problem}; give it once")))?;
        }
        Ok(parameters)
    }

    /// Reads a body, which must be one JSON object.
    pub(super) fn of_json(body: &[u8]) -> Result<Self, ApiError> {
        let problem = match serde_json::from_slice(body) {
            Ok(Value::Object(parameters)) => return Ok(parameters),
            Ok(_) => "it is another value".to_owned(),
            Err(error) => error.to_string(),
        };
        Err(ApiError::bad_request(format!(
            "the body is not an object of JSON with each parameter once: {problem}; send one, such as {{\"name\": \"gpu\"}}"
        )))
    }

    /// Adds a parameter. Fails, with the problem in words, if there is already one with this name.
    fn add(&mut self, key: String, value: Value) -> Result<(), String> {
        if self.given.contains_key(&key) {
            return Err(format!("the parameter {} is given twice", Quoted(key.as_bytes())));
        }
        self.given.insert(key, value);
        Ok(())
    }

    /// Takes a parameter, and notes that the request may have it. One that is `null` counts as missing.
    fn take(&mut self, key: &'static str) -> Option<Value> {
        self.known.push(key);
        self.take_unnoted(key)
    }

    fn take_unnoted(&mut self, key: &str) -> Option<Value> {
        self.given.remove(key).filter(|value| !matches!(value, Value::Null))
    }

    /// Takes a text that may be missing.
    pub(super) fn text(&mut self, key: &'static str) -> Result<Option<String>, ApiError> {
        let value = self.take(key);
        Self::text_of(key, value)
    }

    fn text_of(key: &str, value: Option<Value>) -> Result<Option<String>, ApiError> {
        match value {
            None => Ok(None),
            Some(Value::Text(text)) => Ok(Some(text)),
            Some(_) => Err(ApiError::bad_request(format!("\"{key}\" must be a string"))),
        }
    }

    /// Takes a list of texts; empty if it is missing.
    pub(super) fn texts(&mut self, key: &'static str) -> Result<Vec<String>, ApiError> {
        self.list(key, "strings", |item| if let Value::Text(text) = item { Some(text) } else { None })
    }

    /// Takes a list of objects; empty if it is missing.
    pub(super) fn objects(&mut self, key: &'static str) -> Result<Vec<Self>, ApiError> {
        self.list(key, "objects", |item| if let Value::Object(object) = item { Some(object) } else { None })
    }

    /// Takes a list of items that `of` accepts.
    fn list<T>(
        &mut self,
        key: &'static str,
        items: &str,
        of: impl Fn(Value) -> Option<T>,
    ) -> Result<Vec<T>, ApiError> {
        let list = match self.take(key) {
            None => Some(Vec::new()),
            Some(Value::List(list)) => list.into_iter().map(of).collect(),
            Some(_) => None,
        };
        list.ok_or_else(|| ApiError::bad_request(format!("\"{key}\" must be a list of {items}")))
    }

    /// Takes a whole number in this range; `None` if it is missing. In JSON it may also be a string, as large numbers are
    /// in answers.
    pub(super) fn number<T: Copy + PartialOrd + TryFrom<u64> + fmt::Display>(
        &mut self,
        key: &'static str,
        range: RangeInclusive<T>,
    ) -> Result<Option<T>, ApiError> {
        let number = match self.take(key) {
            None => return Ok(None),
            // 3.0 is a whole number too (JSON Schema), and some languages write numbers in this way.
            Some(Value::Number(number)) => number.as_u64().or_else(|| whole(number.as_f64()?)),
            Some(Value::Text(text)) => text.parse().ok(),
            Some(_) => None,
        };
        let number = number.and_then(|number| T::try_from(number).ok());
        number.filter(|number| range.contains(number)).map(Some).ok_or_else(|| {
            let (least, most) = (range.start(), range.end());
            ApiError::bad_request(format!("\"{key}\" must be a whole number from {least} to {most}"))
        })
    }

    /// Takes the label; empty if it is missing.
    pub(super) fn label(&mut self) -> Result<Vec<u8>, ApiError> {
        let label = self.bytes("label")?.unwrap_or_default();
        if label.len() > LABEL_BYTES_MAX {
            return Err(ApiError::bad_request(format!("\"label\" must be at most {LABEL_BYTES_MAX} bytes")));
        }
        Ok(label)
    }

    /// Takes a time that may be missing: a number of milliseconds, or a text with a unit.
    pub(super) fn milliseconds(&mut self, key: &'static str) -> Result<Option<Milliseconds>, ApiError> {
        let is_number = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
        let has_unit = |value: &Value| matches!(value, Value::Text(text) if !is_number(text));
        if !self.given.get(key).is_some_and(has_unit) {
            return Ok(self.number(key, 0..=u32::MAX)?.map(Milliseconds));
        }
        let time = self.text(key)?.and_then(|text| span(&text));
        match time.and_then(|time| u32::try_from(time.as_millis()).ok()) {
            Some(ms) => Ok(Some(Milliseconds(ms))),
            None => Err(ApiError::bad_request(format!(
                "\"{key}\" must be a whole number of milliseconds from 0 to {}, or a time such as \"30s\" or \"5m\"",
                u32::MAX
            ))),
        }
    }

    /// Takes `true` or `false`; `false` if it is missing.
    pub(super) fn flag(&mut self, key: &'static str) -> Result<bool, ApiError> {
        match self.take(key) {
            None => Ok(false),
            Some(Value::Flag(flag)) => Ok(flag),
            Some(Value::Text(text)) if text == "true" => Ok(true),
            Some(Value::Text(text)) if text == "false" => Ok(false),
            Some(_) => Err(ApiError::bad_request(format!("\"{key}\" must be true or false"))),
        }
    }

    /// Takes one of these words, and returns its value; that of the first one if the parameter is missing.
    pub(super) fn word<T: Copy>(&mut self, key: &'static str, words: &[(&str, T)]) -> Result<T, ApiError> {
        let (first, rest) = words.split_first().expect("every parameter has words");
        let Some(given) = self.text(key)? else { return Ok(first.1) };
        let found = words.iter().find(|(word, _)| *word == given).map(|(_, value)| *value);
        found.ok_or_else(|| {
            let mut words: Vec<_> = rest.iter().map(|(word, _)| format!("\"{word}\"")).collect();
            words.insert(0, format!("\"{}\"", first.0));
            ApiError::bad_request(format!("\"{key}\" must be {}", words.join(" or ")))
        })
    }

    /// Takes the kind, which is a namespace; `None`: both.
    pub(super) fn kind(&mut self) -> Result<Option<Namespace>, ApiError> {
        let words = Namespace::ALL.map(|namespace| (port_name(namespace), Some(namespace)));
        let [counter, semaphore] = words;
        self.word("kind", &[("any", None), counter, semaphore])
    }

    /// Takes bytes that may be missing: the text of this key, or the hexadecimal digits of the key with `_hex`.
    pub(super) fn bytes(&mut self, key: &'static str) -> Result<Option<Vec<u8>>, ApiError> {
        let text = self.text(key)?;
        let is_hex = |given: &&String| given.strip_suffix("_hex") == Some(key);
        let Some(hex_key) = self.given.keys().find(is_hex).cloned() else {
            return Ok(text.map(String::into_bytes));
        };
        let digits = self.take_unnoted(&hex_key);
        match (text, Self::text_of(&hex_key, digits)?) {
            (Some(_), Some(_)) => Err(ApiError::bad_request(format!(
                "\"{key}\" and \"{hex_key}\" are both given; give one of them"
            ))),
            (Some(text), None) => Ok(Some(text.into_bytes())),
            (None, Some(digits)) => from_hex(&digits).map(Some).ok_or_else(|| {
                ApiError::bad_request(format!("\"{hex_key}\" must be an even number of hexadecimal digits"))
            }),
            (None, None) => Ok(None),
        }
    }

    /// Takes the name that the request is about.
    pub(super) fn name(&mut self) -> Result<Vec<u8>, ApiError> {
        let name = self.bytes("name")?.unwrap_or_default();
        if name.is_empty() || name.len() > NAME_BYTES_MAX {
            let message = format!(
                "a name of 1 to {NAME_BYTES_MAX} bytes is required; give \"name\", or \"name_hex\" if it is not UTF-8"
            );
            return Err(ApiError::bad_request(message));
        }
        Ok(name)
    }

    /// Fails if the request has an unknown parameter: one that was not taken.
    pub(super) fn end(&self) -> Result<(), ApiError> {
        let Some(key) = self.given.keys().next() else { return Ok(()) };
        let begins = |known: &&&str| key.len() > 1 && known.starts_with(key);
        let close = closest(key, self.known.iter().copied()).or(self.known.iter().find(begins).copied());
        let advice = match close {
            Some(close) => format!("did you mean \"{close}\"?"),
            None => "docs/http.md and /api/v1/openapi.json list them".to_owned(),
        };
        Err(ApiError::bad_request(format!("there is no parameter {} here; {advice}", Quoted(key.as_bytes()))))
    }
}

/// Returns the number if it is whole and at most 2⁵³: up to there, all whole numbers are exact.
fn whole(number: f64) -> Option<u64> {
    ((0.0..=9_007_199_254_740_992.0).contains(&number) && number.fract() == 0.0).then_some(number as u64)
}

/// Decodes a part of a query, which must be UTF-8.
fn decoded(text: &str) -> Result<String, ApiError> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let [byte, tail @ ..] = rest {
        rest = tail;
        match byte {
            b'%' => {
                let digits = rest.split_at_checked(2).and_then(|(digits, tail)| {
                    rest = tail;
                    from_hex(str::from_utf8(digits).ok()?)
                });
                let wrong =
                    || ApiError::bad_request("a % in the URL must be followed by two hexadecimal digits");
                bytes.extend(digits.ok_or_else(wrong)?);
            }
            b'+' => bytes.push(b' '),
            other => bytes.push(*other),
        }
    }
    String::from_utf8(bytes).map_err(|_| {
        ApiError::bad_request(
            "a parameter is not UTF-8; give bytes in hexadecimal digits, such as name_hex=ff00",
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_come_as_text_or_in_hexadecimal_digits() {
        for (query, expected) in [
            ("name=a%2Fb+c%C3%A4", Some("a/b cä".as_bytes())),
            ("name_hex=fF00", Some(&[0xff, 0x00][..])),
            ("name=%00", Some(&[0][..])),
            ("name=", None),
            ("", None),
            ("name=%ff", None),
            ("name=%4", None),
            ("name=%zz", None),
            ("name_hex=fff", None),
            ("name_hex=+f", None),
            ("name=a&name_hex=61", None),
            ("name=a&name=b", None),
        ] {
            let name = Parameters::of_query(query).and_then(|mut parameters| parameters.name());
            assert_eq!(name.ok().as_deref(), expected, "{query}");
        }
        let long = format!("name={}", "a".repeat(NAME_BYTES_MAX + 1));
        assert!(Parameters::of_query(&long).unwrap().name().is_err());
    }

    #[test]
    fn a_parameter_is_given_once() {
        for body in
            [r#"{"name": "a", "name": "b"}"#, r#"{"name": "a", "n\u0061me": "a"}"#, r#"{"a": null, "a": 1}"#]
        {
            let refused = Parameters::of_json(body.as_bytes()).unwrap_err();
            assert!(refused.message.contains("given twice"), "{}", refused.message);
        }
        assert!(Parameters::of_query("a=1&b=1&a=1").unwrap_err().message.contains("\"a\" is given twice"));
        let refused = Parameters::of_json(br#"{"claims": [{"a": 1, "a": 2}]}"#).unwrap_err();
        assert!(refused.message.contains("given twice"), "also in a list: {}", refused.message);
    }

    #[test]
    fn a_long_name_of_a_parameter_makes_no_long_answer() {
        let name = "\u{200b}".repeat(100_000);
        let mut unknown = Parameters::of_json(format!("{{\"{name}\": 1}}").as_bytes()).unwrap();
        unknown.number("maximum", 0..=1).unwrap();
        let twice = Parameters::of_json(format!("{{\"{name}\": 1, \"{name}\": 1}}").as_bytes());
        for refused in [unknown.end().unwrap_err(), twice.unwrap_err()] {
            assert!(refused.message.len() < 4096, "{}", refused.message.len());
        }
    }

    #[test]
    fn a_time_is_milliseconds_or_has_a_unit() {
        let mut times = Parameters::of_json(
            br#"{"a": 1500, "b": "1500", "c": "1.5s", "d": "5m", "e": "5 m", "f": "2000h"}"#,
        )
        .unwrap();
        for (key, ms) in [("a", 1500), ("b", 1500), ("c", 1500), ("d", 300_000)] {
            assert_eq!(times.milliseconds(key).unwrap(), Some(Milliseconds(ms)), "{key}");
        }
        assert!(times.milliseconds("e").is_err() && times.milliseconds("f").is_err(), "wrong, and too long");
        assert_eq!(times.milliseconds("g").unwrap(), None);
    }

    #[test]
    fn numbers_words_and_flags_are_checked() {
        let mut json = Parameters::of_json(
            br#"{"a": 7, "b": "18446744073709551615", "c": true, "d": 1.5, "e": null, "f": 7.0}"#,
        )
        .unwrap();
        assert_eq!(json.number("a", 0..=10).unwrap(), Some(7));
        assert_eq!(json.number("b", 0..=u64::MAX).unwrap(), Some(u64::MAX));
        assert!(json.flag("c").unwrap());
        assert!(json.number("d", 0..=10).is_err());
        assert_eq!(json.number("e", 0..=10).unwrap(), None);
        assert_eq!(json.number("f", 0..=10).unwrap(), Some(7));
        json.end().unwrap();
        let mut query = Parameters::of_query("a=11&kind=semaphore&order=up&f=yes&x").unwrap();
        assert!(query.number("a", 0..=10).is_err());
        assert_eq!(query.kind().unwrap(), Some(Namespace::Semaphores));
        let refused = query.word("order", &[("asc", 1), ("desc", 2)]).unwrap_err();
        assert_eq!(refused.message, "\"order\" must be \"asc\" or \"desc\"");
        assert!(query.flag("f").is_err());
        assert!(query.end().unwrap_err().message.contains("\"x\""));
        let mut query = Parameters::of_query("max=1&orde=asc").unwrap();
        assert!(query.number("maximum", 0..=10).unwrap().is_none());
        assert!(query.end().unwrap_err().message.contains("\"maximum\""));
        let mut query = Parameters::of_query("least=0&none=0&time=30x").unwrap();
        assert!(query.number("least", 1..=5).is_err() && query.number("none", 0..=5).is_ok());
        assert!(query.milliseconds("time").unwrap_err().message.contains("30s"));
        for wrong in ["[]", "{", "7", "{} {}"] {
            assert!(Parameters::of_json(wrong.as_bytes()).is_err(), "{wrong}");
        }
        for wrong in [r#"{"a": [[]]}"#, r#"{"a": {}}"#, r#"{"a": ["b", {}]}"#, r#"{"a": [1]}"#] {
            let parameters = || Parameters::of_json(wrong.as_bytes()).unwrap();
            assert!(parameters().texts("a").is_err() && parameters().objects("a").is_err(), "{wrong}");
        }
    }
}
