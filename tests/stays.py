# SPDX-License-Identifier: Apache-2.0
"""Small files of PhysioNet's stays in intensive care, in the original format."""

import numpy as np

# the 35 variables of the authors of BRITS, in the order of the challenge's description
NAMES = """
GCS HR NIDiasABP NIMAP NISysABP RespRate Temp Urine HCT BUN Creatinine Glucose HCO3 Mg Platelets K Na WBC pH PaCO2 PaO2
DiasABP FiO2 MAP SysABP SaO2 Albumin ALP ALT AST Bilirubin Lactate Cholesterol TroponinI TroponinT
"""
FEATURES = NAMES.split()
# variables and hours of a stay's table
F, T = 35, 48
STAYS = 40


def records():
    """Draw the rows (minute, name, value) of each stay by number, and its outcome (True: in-hospital death).

    The last stay has no measurement of the 35 variables; one variable is never measured, one is constant.
    """
    rng = np.random.default_rng(0)
    rows, dead = {}, {}
    for i in range(STAYS):
        number = 132539 + i
        dead[number] = int(i % 4 == 0)
        minutes = sorted(rng.integers(0, 2881, 160).tolist()) if i < STAYS - 1 else [7]
        names = [*FEATURES[:30], "Weight", "MechVent", "HR", "HR"] if i < STAYS - 1 else ["Weight"]
        rows[number] = [(0, "RecordID", number), (0, "Age", 50), (0, "Gender", 1), (0, "Height", -1), (0, "ICUType", 2)]
        for minute in minutes:
            name = str(rng.choice(names))
            # different scales and offsets, and larger values for stays that end in death
            value = 7.5 if name == "GCS" else round(float(rng.normal(10 * len(name) + dead[number], len(name))), 2)
            rows[number].append((minute, name, value))
        if i == 0:
            # twice in the same hour, twice at the same minute, and at the very end
            rows[number] += [(2820, "Na", 1.0), (2830, "Na", 2.0), (2830, "Na", 3.0), (2880, "Na", 4.0)]
            rows[number].sort(key=lambda row: row[0])
    return rows, dead


def write_stays(place):
    """Write records and outcomes in PhysioNet's format."""
    (place / "set-a").mkdir(parents=True)
    rows, dead = records()
    for number, lines in rows.items():
        text = [f"{minute // 60:02d}:{minute % 60:02d},{name},{value}" for minute, name, value in lines]
        (place / "set-a" / f"{number}.txt").write_text("\n".join(["Time,Parameter,Value", *text]) + "\n")
    outcomes = [f"{number},6,1,5,-1,{dead[number]}" for number in rows]
    header = "RecordID,SAPS-I,SOFA,Length_of_stay,Survival,In-hospital_death"
    (place / "Outcomes-a.txt").write_text("\n".join([header, *outcomes]) + "\n")


def deltas(masks, times):
    """The recurrence of Cao et al., section 3, for masks (T, F) and times (T,)."""
    gaps = np.zeros(masks.shape)
    for t in range(1, len(masks)):
        for f in range(masks.shape[1]):
            gaps[t, f] = times[t] - times[t - 1] + (0 if masks[t - 1, f] else gaps[t - 1, f])
    return gaps
