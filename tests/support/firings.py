"""Writes crates/domain/src/calendar_firings.txt: the firings of cron patterns, computed with Python's zoneinfo.

Finds every matching second of local time by stepping through UTC minute by minute, so it shares nothing with the
code under test. Run it again only to add cases:

    python3 tests/support/firings.py >crates/domain/src/calendar_firings.txt

Each line has the pattern, the zone, the start and the firings after it, in Unix seconds, up to the end of the
scan, at most 24 of them.
"""

import random
from datetime import datetime, timedelta, timezone
from zoneinfo import ZoneInfo

DAYS = {name: n for n, name in enumerate("SUN MON TUE WED THU FRI SAT".split())}
MONTHS = {name: n + 1 for n, name in enumerate("JAN FEB MAR APR MAY JUN JUL AUG SEP OCT NOV DEC".split())}
NICKNAMES = {"@hourly": "0 * * * *", "@daily": "0 0 * * *", "@weekly": "0 0 * * 0",
             "@monthly": "0 0 1 * *", "@yearly": "0 0 1 1 *"}
COUNT = 24
# Two weeks around each daylight saving change.
STARTS = {
    "Europe/Berlin": ["2026-03-25", "2026-10-21", "2027-03-24"],
    "America/New_York": ["2026-03-04", "2026-10-28"],
    "Australia/Lord_Howe": ["2026-04-01", "2026-09-30"],
    "Pacific/Auckland": ["2026-04-01", "2026-09-23"],
    "America/Santiago": ["2026-04-01", "2026-09-02"],
    "Asia/Kolkata": ["2026-06-01"],
    "UTC": ["2026-02-25"],
}


def values(text, low, high, names):
    found = set()
    for part in text.split(","):
        span, _, step = part.partition("/")
        if span == "*":
            first, last = low, high
        else:
            first, _, last = span.partition("-")
            first = names.get(first, first)
            last = names.get(last, last) if last else (high if step else first)
        found.update(range(int(first), int(last) + 1, int(step or 1)))
    return found


class Pattern:
    def __init__(self, text):
        fields = NICKNAMES.get(text, text).split()
        if len(fields) == 5:
            fields = ["0"] + fields
        second, minute, hour, day, month, weekday = fields
        self.seconds = values(second, 0, 59, {})
        self.minutes = values(minute, 0, 59, {})
        self.hours = values(hour, 0, 23, {})
        self.days = values(day, 1, 31, {})
        self.months = values(month, 1, 12, MONTHS)
        self.weekdays = {n % 7 for n in values(weekday, 0, 7, DAYS)}
        self.any_day = day == "*"
        self.any_weekday = weekday == "*"
        times = (self.seconds, self.minutes, self.hours)
        has_steps = any(c in field for field in (second, minute, hour) for c in "*/")
        self.is_fixed = all(len(values) == 1 for values in times) and not has_steps

    def has_date(self, local):
        if local.month not in self.months:
            return False
        day = local.day in self.days
        weekday = (local.weekday() + 1) % 7 in self.weekdays
        if self.any_day or self.any_weekday:
            return day and weekday
        return day or weekday

    def has_minute(self, local):
        return local.minute in self.minutes and local.hour in self.hours and self.has_date(local)


def firings(pattern, zone, start, days):
    found = set()
    utc = start
    before = None
    while utc < start + timedelta(days=days) and len(found) <= COUNT * 4:
        local = utc.astimezone(zone)
        wall = local.replace(tzinfo=None, fold=0)
        if before is not None and wall - before > timedelta(minutes=1) and pattern.is_fixed and pattern.has_date(local):
            # The clocks went forward: a skipped firing happens now, once.
            missing = before + timedelta(minutes=1)
            while missing < wall:
                if pattern.has_minute(missing):
                    found.add(utc)
                missing += timedelta(minutes=1)
        if pattern.has_minute(local) and not (pattern.is_fixed and local.fold):
            found.update(utc + timedelta(seconds=second) for second in pattern.seconds)
        before = wall
        utc += timedelta(minutes=1)
    return sorted(moment for moment in found if moment > start)[:COUNT]


def random_pattern(draw):
    def field(low, high, wide):
        kind = draw.random()
        if kind < wide:
            return draw.choice(["*", f"*/{draw.choice([2, 5, 7, 10, 15])}"])
        if kind < 0.8:
            return str(draw.randint(low, high))
        first = draw.randint(low, high - 1)
        last = draw.randint(first + 1, high)
        return draw.choice([f"{first},{last}", f"{first}-{last}"])
    minute = field(0, 59, 0.3)
    hour = draw.choice([field(0, 23, 0.4), str(draw.randint(0, 3)), "1-3", "2", "*"])
    day = draw.choice(["*", "*", "*", field(1, 28, 0.2)])
    weekday = draw.choice(["*", "*", "*", "SUN", "MON-FRI", "0,3", "7", "SAT,SUN"])
    return f"{minute} {hour} {day} * {weekday}"


def main():
    draw = random.Random(20261122)
    fixed = ["30 2 * * *", "0 2 * * *", "0 3 * * *", "59 1 * * *", "30 1 * * *", "0 0 * * *", "*/15 * * * *",
             "*/30 1-3 * * *", "0 * * * *", "15,45 2 * * *", "0 9 * * MON-FRI", "30 2 * * SUN", "0 0,2,3 * * *",
             "15 30 2 * * *", "0,30 59 1 * * *", "@daily", "@hourly", "@weekly", "0 */6 * * *", "45 23 28-31 * *",
             "0 12 1,15 * FRI", "5 4 * MAR,OCT SUN", "30 */2 * * *", "0 1-2 * * *"]
    for name, starts in STARTS.items():
        zone = ZoneInfo(name)
        patterns = fixed + [random_pattern(draw) for _ in range(16)]
        for day in starts:
            start = datetime.fromisoformat(day).replace(tzinfo=timezone.utc)
            for text in patterns:
                pattern = Pattern(text)
                moments = firings(pattern, zone, start, 14)
                if moments:
                    listed = " ".join(str(int(moment.timestamp())) for moment in moments)
                    print(f"{text} | {name} | {int(start.timestamp())} | {listed}")


main()
