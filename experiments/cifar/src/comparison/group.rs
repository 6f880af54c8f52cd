//! Runs that differ only in their seed, and averages over them.

use serde::Serialize;
use serde_json::{Map, Value};

use super::Member;
use crate::evaluation::results::{Measured, Way};
use crate::run::Record;
use crate::settings::Settings;

/// Runs that differ only in their seed.
#[derive(Clone, Debug)]
pub struct Group {
    /// The name of the group: the method, and the settings that distinguish it from other groups.
    pub label: String,
    /// The settings of its runs; the seed is that of the first run.
    pub settings: Settings,
    /// The runs.
    pub members: Vec<Member>,
}

/// Mean and standard deviation over runs.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Spread {
    /// The mean.
    pub mean: f64,
    /// The sample standard deviation (with n - 1 in the denominator); absent for a single run.
    pub deviation: Option<f64>,
    /// The value of each run.
    pub values: Vec<f64>,
}

impl Spread {
    /// The spread of these values, or `None` if there are no values.
    pub fn of(values: impl IntoIterator<Item = f64>) -> Option<Self> {
        let values: Vec<f64> = values.into_iter().collect();
        let count = values.len() as f64;
        if values.is_empty() {
            return None;
        }
        let mean = values.iter().sum::<f64>() / count;
        let squares: f64 = values.iter().map(|value| (value - mean).powi(2)).sum();
        Some(Self {
            mean,
            deviation: (values.len() > 1).then(|| (squares / (count - 1.0)).sqrt()),
            values,
        })
    }
}

impl Group {
    /// The spread of one score over the runs, or `None` if these networks cannot predict this way.
    pub fn spread(&self, way: Way, number: impl Fn(&Measured) -> f64) -> Option<Spread> {
        let members = self.members.iter();
        Spread::of(members.filter_map(|member| Some(number(member.evaluation.way(way)?))))
    }

    /// The spread of a number after each epoch, over the runs that were trained for that long.
    pub fn over_epochs(&self, number: impl Fn(&Record) -> Option<f64>) -> Vec<(f64, Spread)> {
        let records = || self.members.iter().flat_map(|member| &member.records);
        let last = records().map(|record| record.epoch).max().unwrap_or(0);
        let at = |epoch: u64| {
            let records = records().filter(|record| record.epoch == epoch);
            Some((epoch as f64, Spread::of(records.filter_map(&number))?))
        };
        (1..=last).filter_map(at).collect()
    }

    /// sigma_eff of each layer, from first to last; empty without noise.
    pub fn profile(&self) -> Vec<Spread> {
        let depth = self.members.first().map_or(0, |member| member.layers.len());
        let layer = |layer: usize| {
            let layers = self.members.iter().filter_map(|member| member.layers.get(layer));
            Spread::of(layers.map(|layer| layer.sigma_eff()))
        };
        (0..depth).filter_map(layer).collect()
    }

    /// The number of epochs that the runs were trained for, as text.
    pub fn epochs(&self) -> String {
        let epochs = || self.members.iter().map(|member| member.epoch);
        let (low, high) = (epochs().min().unwrap_or(0), epochs().max().unwrap_or(0));
        let planned = u64::from(self.settings.epochs);
        match (low, high) {
            (low, _) if low == planned => planned.to_string(),
            (low, high) if low == high => format!("{low} of {planned}"),
            (low, high) => format!("{low} to {high} of {planned}"),
        }
    }
}

/// Groups runs that differ only in their seed, and in settings that they do not use. The groups are in the order of their first runs.
pub fn by_configuration(members: Vec<Member>) -> Vec<Group> {
    let same = |a: &Settings, b: &Settings| a.method == b.method && fields(a) == fields(b);
    let mut groups: Vec<Group> = Vec::new();
    for member in members {
        let settings = &member.config.settings;
        match groups.iter_mut().find(|group| same(&group.settings, settings)) {
            Some(group) => group.members.push(member),
            None => groups.push(Group {
                label: String::new(),
                settings: settings.clone(),
                members: vec![member],
            }),
        }
    }
    for group in &groups {
        warn_of_repeated_seeds(group);
    }
    let settings: Vec<Settings> = groups.iter().map(|group| group.settings.clone()).collect();
    for (group, label) in groups.iter_mut().zip(labels(&settings)) {
        group.label = label;
    }
    groups
}

fn warn_of_repeated_seeds(group: &Group) {
    for (number, member) in group.members.iter().enumerate() {
        let seed = |member: &Member| member.config.settings.seed;
        let twin = group.members[..number].iter().find(|other| seed(other) == seed(member));
        if let Some(twin) = twin {
            tracing::warn!(
                "{} and {} have the same settings and the same seed: their standard deviation is meaningless",
                twin.folder.display(),
                member.folder.display()
            );
        }
    }
}

/// Names configurations by their method and by the settings in which they differ. Settings that a
/// method does not use are not mentioned in its name.
fn labels(settings: &[Settings]) -> Vec<String> {
    let fields: Vec<Map<String, Value>> = settings.iter().map(fields).collect();
    let label = |(own, mine): (&Settings, &Map<String, Value>)| {
        let differs = |name: &str| {
            let others = fields.iter().filter_map(|fields| fields.get(name));
            others.into_iter().any(|other| mine.get(name) != Some(other))
        };
        let mut label = String::from(own.method.title());
        for (name, value) in mine.iter().filter(|(name, _)| differs(name)) {
            let value = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
            label += &format!(", {} {value}", name.replace('_', " "));
        }
        label
    };
    settings.iter().zip(&fields).map(label).collect()
}

/// The settings that can distinguish two configurations of the same method: those that the method
/// uses, except for the seed.
fn fields(settings: &Settings) -> Map<String, Value> {
    let Ok(Value::Object(mut fields)) = serde_json::to_value(settings) else {
        return Map::new();
    };
    for name in ["seed", "method"].into_iter().chain(settings.unused()) {
        fields.remove(name);
    }
    fields
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::beta::Beta;
    use crate::settings::{Method, Preset};

    #[test]
    fn the_deviation_has_one_less_than_the_runs_in_its_denominator() {
        let spread = Spread::of([1.0, 2.0, 6.0]).unwrap();
        assert_eq!(spread.mean, 3.0);
        assert_eq!(spread.deviation, Some(7.0_f64.sqrt()));
        assert_eq!(Spread::of([5.0]).unwrap().deviation, None);
        assert_eq!(Spread::of([]), None);
    }

    #[test]
    fn labels_name_the_method_and_only_what_differs() {
        let quick = Preset::Quick.settings();
        let none = Settings { method: Method::None, ..quick.clone() };
        let stronger = Settings { beta: Beta::Fixed(0.5), ..quick.clone() };
        assert_eq!(labels(&[quick.clone(), none.clone()]), ["vmf", "none (no KL)"]);
        assert_eq!(
            labels(&[quick.clone(), none.clone(), stronger]),
            ["vmf, beta auto", "none (no KL)", "vmf, beta 0.5"]
        );
        // A beta that is found has no schedule to differ in.
        let warmer = Settings { warmup: 7.0, ..quick.clone() };
        assert_eq!(labels(&[quick.clone(), warmer]), ["vmf", "vmf"]);
        // Networks of different width must not look as if they differed in their method alone.
        let wide = Settings { width: 0.5, ..none };
        assert_eq!(labels(&[quick, wide]), ["vmf, width 0.125", "none (no KL), width 0.5"]);
    }
}
