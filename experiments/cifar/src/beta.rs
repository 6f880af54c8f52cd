//! The weight of the KL: found during training, or a number.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// The weight of the KL. On the command line and in config.json it is `auto` or a number.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Beta {
    /// Found during training, on the images that are held out.
    Auto,
    /// This number, after the warm-up.
    Fixed(f64),
}

impl Beta {
    /// The number, unless it is found during training.
    pub fn fixed(self) -> Option<f64> {
        match self {
            Beta::Auto => None,
            Beta::Fixed(beta) => Some(beta),
        }
    }
}

const AUTO: &str = "auto";

impl fmt::Display for Beta {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Beta::Auto => f.write_str(AUTO),
            Beta::Fixed(beta) => beta.fmt(f),
        }
    }
}

impl FromStr for Beta {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text {
            AUTO => Ok(Beta::Auto),
            text => match text.parse() {
                Ok(beta) => Ok(Beta::Fixed(beta)),
                Err(_) => Err(format!("it must be `{AUTO}` or a number, such as 0.1")),
            },
        }
    }
}

impl Serialize for Beta {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Beta::Auto => serializer.serialize_str(AUTO),
            Beta::Fixed(beta) => serializer.serialize_f64(*beta),
        }
    }
}

impl<'de> Deserialize<'de> for Beta {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(untagged)]
        enum Either {
            Number(f64),
            Text(String),
        }
        match Either::deserialize(deserializer)? {
            Either::Number(beta) => Ok(Beta::Fixed(beta)),
            Either::Text(text) if text == AUTO => Ok(Beta::Auto),
            Either::Text(text) => {
                Err(serde::de::Error::custom(format!("beta is {text:?}, not {AUTO:?} or a number")))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn beta_is_auto_or_a_number_on_the_command_line_and_in_the_file() {
        for (text, json, beta) in [
            ("auto", "\"auto\"", Beta::Auto),
            ("0.1", "0.1", Beta::Fixed(0.1)),
            ("1", "1.0", Beta::Fixed(1.0)),
        ] {
            assert_eq!(text.parse(), Ok(beta));
            assert_eq!(beta.to_string(), text);
            assert_eq!(serde_json::to_string(&beta).unwrap(), json);
            assert_eq!(serde_json::from_str::<Beta>(json).unwrap(), beta);
        }
        assert_eq!(serde_json::from_str::<Beta>("1").unwrap(), Beta::Fixed(1.0));
        assert!("automatic".parse::<Beta>().unwrap_err().contains("auto"));
        assert!(serde_json::from_str::<Beta>("\"0.1\"").unwrap_err().to_string().contains("0.1"));
    }
}
